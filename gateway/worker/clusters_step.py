"""The part of an analysis that clusters edits by their phrases: load, call the text embedder, apply.

Replies are recorded, so a report that is built again repeats no call.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sqlalchemy import select

from gateway.analysis.effects import Floats
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import SourceImage
from gateway.methods.similarity import MAX_TEXTS
from gateway.model_services.clients import ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.results.clusters import edit_clusters, is_large_enough
from gateway.results.job_rows import JobRows
from gateway.results.rows import ModelRows
from shared.chunks import chunks
from shared.problems import Problem
from shared.schemas.evaluation import EmbedTextsRequest
from shared.schemas.results import JobResults
from shared.seeds import derive_seed
from shared.storage import ObjectStore

METHODS_WITH_OWN_EDITS = ("dillema", "lance", "lance-r")  # in the others, the user or a list chooses the changes
MOST_PHRASES = 5_000
_ADAPTIVE = "an adaptive job chooses its edits by their outcomes, so no half of its images can confirm the other"


def cluster(
    sessions: Sessions,
    store: ObjectStore,
    services: ModelServices,
    rows: JobRows,
    results: JobResults,
    check: Callable[[], None] = lambda: None,
    most: int = MOST_PHRASES,
) -> JobResults:
    """The results; each model has the clusters of its edits. At most `most` phrases, randomly sampled, are embedded.

    A report does not wait for the text embedder: if it cannot be called, `not_clustered` says why. `check` is called
    before each call and raises to end the work.
    """
    large = {
        pair: large_errors
        for pair, large_errors in rows.models.items()
        if pair[1] in METHODS_WITH_OWN_EDITS and is_large_enough(large_errors, _seed(results, *pair))
    }
    if not large:
        return results
    if rows.job.stored_spec.design == "adaptive":
        return results.model_copy(update={"not_clustered": _ADAPTIVE})
    phrases = sorted({phrase for errors in large.values() for phrase in errors.phrases.phrases()})
    sample = sorted(phrases, key=lambda phrase: derive_seed("sample of phrases", phrase))[:most]
    try:
        vectors = _embed(sessions, store, services, rows, sample, check)
    except Problem as problem:
        return results.model_copy(update={"not_clustered": problem.detail})
    left_out = len(phrases) - len(sample)
    reason = f"edits with one of {left_out:,} of {len(phrases):,} phrases, which were not sampled" if left_out else ""
    return _with_clusters(results, large, vectors).model_copy(update={"not_clustered": reason})


def _with_clusters(
    results: JobResults, large: dict[tuple[str, str], ModelRows], vectors: dict[str, Floats]
) -> JobResults:
    models = []
    for figures in results.results:
        errors = large.get((figures.model, figures.method))
        seed = _seed(results, figures.model, figures.method)
        clusters = [] if errors is None else edit_clusters(errors, vectors, seed)
        models.append(figures.model_copy(update={"clusters": clusters}))
    return results.model_copy(update={"results": models})


def _seed(results: JobResults, model: str, method: str) -> int:
    return derive_seed(results.made.analysis_seed, method, model, "clusters")


def _embed(
    sessions: Sessions,
    store: ObjectStore,
    services: ModelServices,
    rows: JobRows,
    phrases: list[str],
    check: Callable[[], None],
) -> dict[str, Floats]:
    """Unit vectors by phrase. The calls are recorded for the job's first image, and deleted with it."""
    s, owner = SourceImage, rows.job.owner_id
    digests = select(s.digest).where(s.job_id == rows.job.id, s.digest.is_not(None)).order_by(s.position).limit(1)
    with reading(sessions) as session:
        source = session.scalar(digests)
    recorded = RecordedServices(services, sessions, ImageShelf(store, sessions, owner), owner, check, source)
    vectors: dict[str, Floats] = {}
    for chunk in chunks(phrases, MAX_TEXTS):
        reply = recorded.embed_texts(EmbedTextsRequest(texts=chunk))
        vectors.update(zip(chunk, map(np.asarray, reply.texts), strict=True))
    return vectors
