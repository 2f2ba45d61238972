"""The scorer's embeddings of images, from the recorded calls of the image checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import RecordedCall
from gateway.model_services.vectors import with_vectors
from shared.chunks import chunks
from shared.endpoints import Services
from shared.storage import ObjectMissing, ObjectStore, call_key

_DIGESTS_PER_QUERY = 100


def recorded_embeddings(
    sessions: Sessions,
    store: ObjectStore,
    owner_id: str,
    digests: Sequence[str],
    revision: str,
    check: Callable[[], None] = lambda: None,
) -> dict[str, NDArray[np.float64]]:
    """The unit vectors by digest of the images whose checks were recorded with this revision of the evaluator.

    The checks send an image's counterfactuals behind the image itself (`gateway.methods.image_scores`), so it has the
    first vector of each recorded reply with images. Objects are read without a session open. `check` is called before
    each query, of 100 images, and raises to end the work.
    """
    vectors: dict[str, NDArray[np.float64]] = {}
    for digest, table in recorded_tables(sessions, store, owner_id, digests, [revision], check):
        vectors.setdefault(digest, table[0])
    return vectors


def recorded_tables(
    sessions: Sessions,
    store: ObjectStore,
    owner_id: str,
    digests: Sequence[str],
    revisions: Sequence[str],
    check: Callable[[], None] = lambda: None,
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Each recorded reply about one of these images: its digest and images × width unit vectors, its own first.

    See `recorded_embeddings`.
    """
    call = RecordedCall
    for chunk in chunks(digests, _DIGESTS_PER_QUERY):
        check()
        query = select(call.key, call.source_digest, call.reply["images"]).where(
            call.owner_id == owner_id,
            call.endpoint == Services.embed.path,
            call.revision.in_(revisions),
            call.source_digest.in_(chunk),
        )
        with reading(sessions) as session:
            rows = session.execute(query.order_by(call.key)).all()
        for key, digest, images in rows:
            try:
                table = np.asarray(with_vectors(images, store, call_key(key))[0], np.float64)
            except ObjectMissing:
                continue
            if table.ndim == 2:  # not of texts alone
                yield digest, table
