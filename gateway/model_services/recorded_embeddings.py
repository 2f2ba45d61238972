"""The scorer's embeddings of source images, from the recorded calls of the image checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import RecordedCall
from gateway.model_services.vectors import with_vectors
from shared.chunks import chunks
from shared.endpoints import Services
from shared.schemas.evaluation import EmbedReply
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
    call = RecordedCall
    for part in chunks(digests, _DIGESTS_PER_QUERY):
        check()
        query = select(call.key, call.source_digest, call.reply).where(
            call.owner_id == owner_id,
            call.endpoint == Services.embed.path,
            call.revision == revision,
            call.source_digest.in_(part),
        )
        with reading(sessions) as session:
            rows = session.execute(query.order_by(call.key)).all()
        for key, digest, reply in rows:
            if digest is None or digest in vectors or not reply.get("images"):
                continue
            try:
                images = EmbedReply.model_validate(with_vectors(reply, store, call_key(key))[0]).images
            except ObjectMissing:
                continue
            vectors[digest] = np.asarray(images[0])
    return vectors
