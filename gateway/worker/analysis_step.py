"""The analysis of a job whose images are finished: its report, written under the lease.

The page has a key of its lease. One transaction, guarded by the lease, ends the job and stores that key. An analysis
whose lease expired, or whose job was retried, does not change the newer report.

The part of an analysis that clusters edits by their phrases: load, call the text embedder, apply.

Replies are recorded, so a report that is built again repeats no call.

The part of an analysis that measures how near counterfactuals are to originals: load, call the services, apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.effects import Floats
from gateway.analysis.realism import perplexity
from gateway.database.events import add_event
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Job, JobRound, SourceImage
from gateway.methods import METHODS
from gateway.methods.similarity import MAX_TEXTS
from gateway.model_services.clients import ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.model_services.waiting import shared_waiting
from gateway.queue import job_states, leases
from gateway.queue.leases import Lease
from gateway.report.build import report_key, store_report, write_report
from gateway.results.clusters import edit_clusters, is_large_enough
from gateway.results.job_rows import JobRows
from gateway.results.realism import LEAST_FOR_FID, SAMPLE, RealismPair, distances, frechet_distances, load_pairs
from gateway.results.rounds import next_round
from gateway.results.rows import ModelRows
from gateway.worker.corroboration_step import corroborate
from gateway.worker.held_leases import LeaseLost
from shared.chunks import chunks
from shared.media.storage import ObjectMissing, ObjectStore
from shared.problems import Problem
from shared.profiles.profile import Profile
from shared.schemas.base import ImagePayload
from shared.schemas.designs import RoundPlan
from shared.schemas.effects import Realism
from shared.schemas.evaluation import EmbedRequest, EmbedTextsRequest
from shared.schemas.language import ScoreRequest
from shared.schemas.results import JobResults
from shared.seeds import derive_seed
from shared.words.wording import nothing_compared

_TEXTS = 64  # per message

Recorded = Callable[[str], RecordedServices]  # by the source image that a call is recorded for
MOST_PHRASES = 5_000
_ADAPTIVE = "an adaptive job chooses its edits by their outcomes, so no half of its images can confirm the other"
UNANSWERED = {"invalid reply", "editor"}  # checks that refuse an edit to which a model gave no usable reply


def analyse(
    sessions: Sessions,
    store: ObjectStore,
    services: ModelServices,
    lease: Lease,
    profile: Profile,
    check: Callable[[], None],
) -> None:
    """Write the report of the leased job and end the job, or start the next round of an adaptive one.

    Raises LeaseLost, and what `write_report` raises.
    """
    with reading(sessions) as session:
        plan = next_round(session, lease.job_id)
    check()
    if plan is not None and plan.places:
        start_round(sessions, lease, plan)
        return
    key = report_key(lease.job_id, lease.token)
    complete = partial(with_service_figures, sessions, store, services, check=check)
    results = write_report(
        sessions,
        store,
        lease.job_id,
        key,
        calibrations=profile.calibration,
        audit=profile.evaluator.judge_audit,
        check=check,
        complete=complete,
    )
    with sessions.begin() as session:
        finished = _apply(session, lease, key, results, plan)
    if not finished:
        store.delete(key)
        raise LeaseLost(lease.id)


def _apply(session: Session, lease: Lease, key: str, results: JobResults, plan: RoundPlan | None) -> bool:
    """End the job with its report; False if the lease is lost."""
    failure = failure_of(results)
    if not leases.finish(session, lease, failure):
        return False
    store_report(session, lease.job_id, key, results)
    if plan is not None and not failure:  # without places: what is added to the job later starts no round
        session.add(JobRound(job_id=lease.job_id, number=plan.number, plan=plan))
    state = session.get_one(Job, lease.job_id).state
    if state == "done":
        add_event(session, lease.job_id, "job", {"state": "done"})
    elif state == "failed":
        add_event(session, lease.job_id, "job", {"state": "failed", "failure": failure})
    return True


def with_service_figures(
    sessions: Sessions,
    store: ObjectStore,
    services: ModelServices,
    rows: JobRows,
    results: JobResults,
    check: Callable[[], None] = lambda: None,
) -> JobResults:
    """The results with the figures that need the services: the job's own images, clusters of edits, realism.

    Services that cannot be called cost these figures alone, and all of them together at most the wait for one call.
    `check` is called before each call and raises to end the work.
    """
    with shared_waiting(services.wait):
        results = corroborate(sessions, store, services, results, check)
        results = cluster(sessions, store, services, rows, results, check)
        return with_realism(sessions, store, services, results, check)


def start_round(sessions: Sessions, lease: Lease, plan: RoundPlan) -> None:
    """Make the images of a round pending and end the lease. Raises LeaseLost, and then nothing has changed.

    Locks images before the job, as every other transaction does.
    """
    with sessions.begin() as session:
        images = job_states.reopen_for_round(session, lease.job_id, plan.positions())
        if not leases.continue_job(session, lease):
            raise LeaseLost(lease.job_id)
        session.add(JobRound(job_id=lease.job_id, number=plan.number, plan=plan))
        add_event(session, lease.job_id, "job", {"state": "running", "round": plan.number}, {"done": -images})


def failure_of(results: JobResults) -> str:
    """Why a job has failed: no source image succeeded, or no model's reply was of use. Empty for other jobs."""
    if results.sources > results.sources_failed + results.sources_cancelled:
        refused = {
            check.check for funnel in results.funnels for check in (*funnel.refused_by_text, *funnel.refused_by_image)
        }
        return nothing_compared(results) if refused and refused <= UNANSWERED else ""
    failed = f"none of the {results.sources} source images succeeded"
    if not results.failure_reasons:
        return failed
    first = results.failure_reasons[0]
    return f"{failed}; most often ({first.count} of {results.sources}): {first.reason}"


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
    clustered = {name for name, spec in METHODS.items() if spec.clustered}
    large = {
        pair: large_errors
        for pair, large_errors in rows.models.items()
        if pair[1] in clustered and is_large_enough(large_errors, _seed(results, *pair))
    }
    if not large:
        return results
    if rows.job.stored_spec.design == "adaptive":
        return results.model_copy(update={"not_clustered": _ADAPTIVE})
    phrases = sorted({phrase for errors in large.values() for phrase in errors.own.phrases.phrases()})
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
