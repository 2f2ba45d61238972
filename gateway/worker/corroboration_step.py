"""The part of an analysis that compares findings with the job's own images: load, call the scorer, apply.

Only a job with findings calls the scorer: for captions, and for images without a recorded embedding. Its replies are
recorded, so a report that is built again repeats no call.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gateway.database.sessions import Sessions, reading
from gateway.methods.image_scores import MAX_TEXTS
from gateway.model_services.clients import ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.model_services.vectors import recorded_embeddings
from gateway.results.corroboration import Vectors, with_corroboration
from gateway.results.own_images import SAMPLE, OwnImages, load_own_images
from shared.chunks import chunks
from shared.media.storage import ObjectStore
from shared.problems import Problem
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import EmbedReply, EmbedRequest
from shared.schemas.results import JobResults


def corroborate(
    sessions: Sessions,
    store: ObjectStore,
    services: ModelServices,
    results: JobResults,
    check: Callable[[], None] = lambda: None,
    most: int = SAMPLE,
) -> JobResults:
    """The results; findings have what the job's own images with their value show, at most `most` images of each class.

    A report does not wait for the scorer: if it cannot be called, `not_corroborated` says why. `check` is called before
    each call and each query, and raises to end the work.
    """
    with reading(sessions) as session:
        images = load_own_images(session, results.made.job, results, most)
    if images is None:
        return results
    try:
        vectors = _vectors(images, sessions, store, services, check)
    except Problem as problem:
        return results.model_copy(update={"not_corroborated": problem.detail})
    return with_corroboration(results, images, vectors)


def _vectors(
    user_images: OwnImages, sessions: Sessions, store: ObjectStore, services: ModelServices, check: Callable[[], None]
) -> Vectors:
    digests = user_images.digests()
    shelf = ImageShelf(store, sessions, user_images.owner_id)

    def embed(request: EmbedRequest, digest: str) -> EmbedReply:
        return RecordedServices(services, sessions, shelf, user_images.owner_id, check, digest).embed(request)

    texts = user_images.texts()
    replies = [embed(EmbedRequest(texts=list(chunk)), digests[0]) for chunk in chunks(texts, MAX_TEXTS)]
    rows = [row for reply in replies for row in reply.texts]
    revision = services.revision("evaluator_service")
    images = recorded_embeddings(sessions, store, user_images.owner_id, digests, revision, check)
    for digest in (digest for digest in digests if digest not in images):
        request = EmbedRequest(images=[ImagePayload(png=shelf.load(digest))])
        images[digest] = np.asarray(embed(request, digest).images[0])
    return Vectors(
        images,
        dict(zip(texts, map(np.asarray, rows), strict=True)),
        replies[0].logit_scale,
    )
