"""The part of an analysis that measures how near counterfactuals are to originals: load, call the services, apply.

Replies are recorded, so a report that is built again repeats no call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gateway.analysis.effects import Floats
from gateway.analysis.realism import perplexity
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Job
from gateway.model_services.clients import ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.results.realism import LEAST_FOR_FID, SAMPLE, RealismPair, distances, frechet_distances, load_pairs
from shared.chunks import chunks
from shared.problems import Problem
from shared.schemas.base import ImagePayload
from shared.schemas.estimates import Realism
from shared.schemas.evaluation import EmbedRequest
from shared.schemas.language import ScoreRequest
from shared.schemas.results import JobResults
from shared.seeds import derive_seed
from shared.storage import ObjectMissing, ObjectStore

_TEXTS = 64  # per message

Recorded = Callable[[str], RecordedServices]  # by the source image that a call is recorded for


def with_realism(
    sessions: Sessions,
    store: ObjectStore,
    services: ModelServices,
    results: JobResults,
    check: Callable[[], None] = lambda: None,
    most: int = SAMPLE,
    for_fid: int = LEAST_FOR_FID,
) -> JobResults:
    """The results; each method with accepted counterfactuals has its `Realism`, from at most `most` source images.

    Where there are `for_fid` of them, that many are embedded, and give the FID.

    A report does not wait for it: if a service cannot be called, `not_measured` says why, and methods after it do not
    call that service again. `check` is called before each call and raises to end the work.
    """
    with reading(sessions) as session:
        owner = session.get_one(Job, results.made.job).owner_id
        samples = load_pairs(session, results.made.job, max(most, for_fid))
    shelf, failed = ImageShelf(store, sessions, owner), dict[str, str]()

    def record(source: str) -> RecordedServices:
        return RecordedServices(services, sessions, shelf, owner, check, source)

    rows = []
    for method, pairs in samples.items():
        if not pairs:
            continue
        seed = derive_seed(results.made.analysis_seed, method, "realism")
        row = _realism(method, pairs[:most], record, shelf, seed, failed)
        if len(pairs) >= for_fid and "images" not in failed:
            row = _with_fid(row, pairs[:for_fid], record, shelf, failed)
        rows.append(row)
    return results.model_copy(update={"realism": rows})


def _realism(
    method: str,
    pairs: Sequence[RealismPair],
    recorded: Recorded,
    shelf: ImageShelf,
    seed: int,
    failed: dict[str, str],
) -> Realism:
    row = Realism(method=method, sources=len(pairs))
    if "images" not in failed:
        try:
            kid, kid_null = distances(pairs, _vectors(pairs, recorded, shelf), seed)
            row = row.model_copy(update={"kid": kid, "kid_null": kid_null})
        except (Problem, ObjectMissing) as problem:
            failed["images"] = str(problem)
    captioned = [pair for pair in pairs if pair.caption and pair.new_caption]
    if captioned and "captions" not in failed:
        try:
            before, after = (_perplexity(captioned, texts, recorded) for texts in ("caption", "new_caption"))
            row = row.model_copy(update={"perplexity": before, "perplexity_edited": after})
        except Problem as problem:
            failed["captions"] = problem.detail
    return row.model_copy(update={"not_measured": failed.copy()})


def _with_fid(
    row: Realism, pairs: Sequence[RealismPair], recorded: Recorded, shelf: ImageShelf, failed: dict[str, str]
) -> Realism:
    try:
        fid, fid_null = frechet_distances(pairs, _vectors(pairs, recorded, shelf), len(pairs))
    except (Problem, ObjectMissing) as problem:
        failed["images"] = str(problem)
        return row.model_copy(update={"not_measured": failed.copy()})
    return row.model_copy(update={"fid": fid, "fid_null": fid_null})


def _vectors(pairs: Sequence[RealismPair], recorded: Recorded, shelf: ImageShelf) -> dict[str, Floats]:
    """Unit vectors by digest. The original is first in its message, as `recorded_embeddings` expects."""
    vectors: dict[str, Floats] = {}
    for pair in pairs:
        digests = pair.digests()
        request = EmbedRequest(images=[ImagePayload(png=shelf.load(digest)) for digest in digests])
        rows = recorded(pair.original).embed(request).images
        vectors.update(zip(digests, map(np.asarray, rows), strict=True))
    return vectors


def _perplexity(pairs: Sequence[RealismPair], field: str, recorded: Recorded) -> float | None:
    sums: list[float] = []
    tokens: list[int] = []
    for chunk in chunks(pairs, _TEXTS):
        texts = [str(getattr(pair, field)) for pair in chunk]
        reply = recorded(chunk[0].original).score(ScoreRequest(texts=texts))
        sums += reply.log_likelihoods
        tokens += reply.tokens
    return perplexity(np.asarray(sums), np.asarray(tokens))
