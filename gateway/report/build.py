"""A job's report: loads its rows, computes without a session open, then stores figures and page.

It calls no model service, except in its caller's `complete`: the services are recorded with the results. Rows are
streamed twice, first for the figures and then for the choice of pictures, which depends on the figures. A report
therefore needs the memory of its figures alone, not of its rows.

Which counterfactuals the report shows: pictures of each finding, flips first; a gallery; some rejected ones.

Source images are streamed and only candidates are kept, so memory does not grow with the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Counterfactual, Job, JobService, Report
from gateway.feedback.notes import load_notes, with_notes
from gateway.jobs.jobs import describe_test_set
from gateway.jobs.task_description import rename_masks
from gateway.kinds.rows import CounterfactualRow, PredictionRow, labels
from gateway.methods import METHODS
from gateway.methods.checks import with_label_rank
from gateway.report.page import report_page
from gateway.report.review_order import ReviewList
from gateway.results.class_colours import class_colours
from gateway.results.confirmation import load_follow_ups, with_confirmations
from gateway.results.doses import Shown, load_edit_shown, with_dose_curves, with_doses
from gateway.results.job_rows import JobRows, load_rows
from gateway.results.measure import measure
from gateway.results.pairing import Triple, triples
from gateway.results.provenance import packets_of_job
from gateway.results.rounds import design_results, rounds_of
from gateway.results.stream import SourceRows, cells_of, stream_sources
from gateway.results.views import counterfactual_views
from shared.media.storage import ObjectStore, image_key
from shared.profiles.judge_audit import JudgeAudit
from shared.profiles.profile import CheckCalibration
from shared.schemas.designs import DesignResults, RoundPlan
from shared.schemas.effects import Cell, CellEffect, CheckErrors
from shared.schemas.finding_notes import FindingNote
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.reports import FindingPictures, JobReport, ReportPictures
from shared.schemas.results import Calibration, CounterfactualView, JobResults, ModelResults
from shared.schemas.service import ServiceInfo
from shared.words.verdicts import verdict_of

PER_FINDING = 6
FINDINGS_WITH_PICTURES = 6
GALLERY = 24
REJECTED = 9

# Enough source images to fill the gallery, even if findings and hero use up all pictures of some source images.
_GALLERY_SOURCES = GALLERY + PER_FINDING * FINDINGS_WITH_PICTURES + 1

_Finding = tuple[str, str, Cell]


def report_key(job_id: str, name: str) -> str:
    """The key of a job's report in the object store. Each analysis has its own key, so it replaces no other page.

    Housekeeping removes pages that no row refers to.
    """
    return f"reports/{job_id}/{name}.html"


def write_report(
    sessions: Sessions,
    store: ObjectStore,
    job_id: str,
    key: str,
    services: Sequence[ServiceInfo] | None = None,
    calibrations: Mapping[str, CheckCalibration] | None = None,
    audit: JudgeAudit | None = None,
    check: Callable[[], None] = lambda: None,
    complete: Callable[[JobRows, JobResults], JobResults] = lambda _, results: results,
) -> JobResults:
    """Measure a job whose images are finished, write its page to `key` of the store, and return the figures.

    `services`: the services that produced the results, by default the recorded ones. `calibrations`: the errors of the
    checks by data set; the job's spec names the data set. `audit`: that of the profile's judge. `check` is called
    between steps and raises to end the work. `complete` adds the figures that need the services
    (`gateway.worker.analysis_step`).

    The page depends on the rows and on recorded calls, so building it again gives the same page. No session is open
    while it computes. Raises sqlalchemy's NoResultFound for an unknown job.
    """
    with reading(sessions) as session:
        stored = _load(session, job_id, services, audit)
    check()
    rows, results = stored.rows, _measure(stored, calibrations or {})
    check()
    results = complete(rows, results)
    review = ReviewList(results, rows.reviewed.verdict)
    pictures, views, packets = _choose_pictures(sessions, rows, review, results)
    results = review.apply(results)
    report = JobReport(results=results, pictures=pictures, counterfactuals=views)
    colours = class_colours(rows.job.classes, rename_masks(rows.job))

    def load(digest: str) -> bytes:
        check()
        return store.get(image_key(digest))

    store.put(key, report_page(report, load, colours, packets, stored.test_set, rows.job.created_at).encode())
    return results


class _Stored(NamedTuple):
    """What a report needs from the database. `confirming` and `dosed` are results of later jobs on its findings."""

    rows: JobRows
    services: Sequence[ServiceInfo]
    confirming: list[JobResults]
    dosed: list[JobResults]
    shown: Shown
    rounds: list[RoundPlan]
    design: DesignResults
    notes: Mapping[str, FindingNote]
    test_set: list[str]


def _load(session: Session, job_id: str, services: Sequence[ServiceInfo] | None, audit: JudgeAudit | None) -> _Stored:
    services = services_of(session, job_id) if services is None else services
    rows = load_rows(session, job_id, audit, services)
    rounds = rounds_of(session, job_id)
    return _Stored(
        rows,
        services,
        load_follow_ups(session, rows.job, "confirmation"),
        load_follow_ups(session, rows.job, "doses"),
        load_edit_shown(session, job_id),
        rounds,
        design_results(session, job_id, rounds),
        load_notes(session, job_id),
        describe_test_set(session, job_id),
    )


def _measure(stored: _Stored, calibrations: Mapping[str, CheckCalibration]) -> JobResults:
    """The figures that need no services."""
    rows = stored.rows
    data = rows.job.stored_spec.calibration or ""
    errors = calibrations.get(data)
    calibration = None if errors is None else _calibration(data, errors, stored.services, rows.job)
    results = measure(rows, stored.services, calibration, stored.rounds)
    results = with_confirmations(with_dose_curves(results, rows, stored.shown), stored.confirming)
    results = with_doses(results, stored.dosed).model_copy(update={"design": stored.design})
    return with_notes(results, stored.notes)


def _choose_pictures(
    sessions: Sessions, rows: JobRows, review: ReviewList, results: JobResults
) -> tuple[ReportPictures, list[CounterfactualView], Mapping[str, bytes]]:
    """The pictures of a report's page, their counterfactuals in that order, and the XMP of those rendered, by digest.

    `review` collects its order from the same stream.
    """
    with reading(sessions) as session:
        pictures = select_pictures(review.collect(stream_sources(session, rows.job.id)), results)
        counterfactuals = session.scalars(select(Counterfactual).where(Counterfactual.id.in_(pictures.ids))).all()
        order = {id: place for place, id in enumerate(pictures.ids)}
        views = sorted(counterfactual_views(session, counterfactuals), key=lambda view: order[view.id])
        rendered = {digest for view in views for digest in (view.image, view.null_image) if digest}
        return pictures, views, packets_of_job(session, rows.job.id, rendered)


def store_report(session: Session, job_id: str, key: str, results: JobResults) -> None:
    """Make the page at `key` the job's report."""
    session.merge(Report(job_id=job_id, object_key=key, metrics=results.model_dump(mode="json")))


def build_report(
    sessions: Sessions,
    store: ObjectStore,
    job_id: str,
    services: Sequence[ServiceInfo] | None = None,
    calibrations: Mapping[str, CheckCalibration] | None = None,
    audit: JudgeAudit | None = None,
) -> JobResults:
    """`write_report` and `store_report` without a lease. Call it only if no worker analyses the job."""
    key = report_key(job_id, "report")
    results = write_report(sessions, store, job_id, key, services, calibrations, audit)
    with sessions.begin() as session:
        store_report(session, job_id, key, results)
    return results


def services_of(session: Session, job_id: str) -> list[ServiceInfo]:
    """The model services that produced a job's results, in the order of their first use.

    Older versions recorded no services with a job; then the services of its last report.
    """
    query = select(JobService.info).where(JobService.job_id == job_id).order_by(JobService.created_at)
    services = list(session.scalars(query))
    if not services and (report := session.get(Report, job_id)) is not None:
        services = list(report.results.made.services.values())
    return services


def _calibration(data: str, errors: CheckCalibration, services: Sequence[ServiceInfo], job: Job) -> Calibration:
    """The errors of the checks on a data set; none if they were measured with other scorer weights than the job's.

    Errors of a method are left out if they were measured at other thresholds than the job's.
    """
    scorers = {weights.revision for info in services for weights in info.weights if weights.role == "scorer"}
    if errors.scorer and scorers != {errors.scorer}:
        scorer_revisions = ", ".join(sorted(revision[:12] for revision in scorers)) or "unrecorded ones"
        reason = f"they were measured with scorer weights {errors.scorer[:12]}, and this job used {scorer_revisions}"
        return Calibration(data=data, judged_by=errors.judged_by, not_used=reason)
    changed_methods = [
        method.name
        for method in job.methods
        if method.name in errors.thresholds
        and with_label_rank({**METHODS[method.name].default_thresholds, **errors.thresholds[method.name]})
        != with_label_rank(method.thresholds)
    ]
    by_method = {name: by_factor for name, by_factor in errors.methods.items() if name not in changed_methods}
    n = errors.judged or sum(_count_judged(by_factor) for by_factor in by_method.values())
    reason = (
        f"the thresholds of {', '.join(changed_methods)} were changed after this job"
        if changed_methods and not by_method
        else ""
    )
    return Calibration(
        data=data, judged_by=errors.judged_by, errors=by_method, classes=errors.classes, n=n, not_used=reason
    )


def _count_judged(by_factor: Mapping[str, CheckErrors]) -> int:
    """The number of judged counterfactuals of a method: those of `default`, else the sum over factors."""
    counted = [by_factor["default"]] if "default" in by_factor else by_factor.values()
    return sum(errors.valid + errors.invalid for errors in counted)


class _Rank(NamedTuple):
    """Sort key: changes of the prediction that the null or sham arm does not share first; then the clearest images."""

    not_changed: bool
    arm_changed: bool
    unclear: float
    change: float
    id: str


def select_pictures(sources: Iterable[SourceRows], results: JobResults) -> ReportPictures:
    """The pictures of a job, ordered as `_Rank` says. Equal rows give equal pictures."""
    findings = [(effect, figures) for figures in results.results for effect in figures.findings]
    unsettled = [(verdict_of(results, figures), figures) for figures in results.results if not figures.findings]
    findings += [(effect, figures) for verdict, figures in unsettled for effect in verdict.shown]
    findings.sort(key=lambda pair: pair[0].standing != "weakness")
    best: dict[_Finding, list[_Rank]] = {
        (figures.model, figures.method, effect.cell): [] for effect, figures in findings[:FINDINGS_WITH_PICTURES]
    }
    gains = {
        (figures.model, figures.method, effect.cell) for effect, figures in findings if effect.standing == "improvement"
    }
    models = list(dict.fromkeys(figures.model for figures in results.results))
    hero_model = next((model for model, _, _ in best), models[0] if models else None)
    heroes: list[_Rank] = []
    accepted: defaultdict[str, list[str]] = defaultdict(list)
    rejected: defaultdict[str, list[str]] = defaultdict(list)
    for rows in sources:
        edits = list(triples(rows.counterfactuals))
        counted = [triple for triple in edits if triple.edit.counted]
        _update_best(rows, counted, best, gains)
        if not best:
            predictions = rows.predictions_of(hero_model or "")
            heroes = nsmallest(1, [*heroes, *(_rank(triple, predictions, ALL_CLASSES) for triple in counted)])
        if counted and len(accepted) < _GALLERY_SOURCES:
            accepted[rows.source.id] = [triple.edit.id for triple in counted]
        for row in (triple.edit for triple in edits):
            if not row.accepted and row.rendered and len(rejected[row.check]) < REJECTED:
                rejected[row.check].append(row.id)
    pictures = [
        FindingPictures(model=model, method=method, cell=cell, counterfactuals=[rank.id for rank in ranks])
        for (model, method, cell), ranks in best.items()
    ]
    hero = heroes[0].id if heroes else None
    if strongest := _strongest(findings, pictures):
        hero, hero_model = strongest.counterfactuals[0], strongest.model
    used_ids = {id for finding in pictures for id in finding.counterfactuals}
    unused_ids = [[id for id in ids if id not in used_ids] for ids in accepted.values()]
    gallery, rejected_ids = _round_robin(unused_ids, GALLERY), _round_robin(rejected.values(), REJECTED)
    return ReportPictures(hero=hero, hero_model=hero_model, findings=pictures, gallery=gallery, rejected=rejected_ids)


def _strongest(
    findings: Sequence[tuple[CellEffect, ModelResults]], pictures: Sequence[FindingPictures]
) -> FindingPictures | None:
    """The finding with pictures that lies furthest beyond no effect; `findings` begin with those of `pictures`."""
    shown = [
        (effect.standing != "weakness", _least(effect), number)
        for number, ((effect, _), finding) in enumerate(zip(findings, pictures, strict=False))
        if finding.counterfactuals
    ]
    return pictures[min(shown)[2]] if shown else None


def _least(effect: CellEffect) -> float:
    """The end of a finding's interval next to zero; the strongest weakness has the lowest."""
    interval = effect.selected_interval or effect.interval
    if interval is None:
        return effect.delta_accuracy
    return -interval.low if effect.standing == "improvement" else interval.high


def _update_best(
    rows: SourceRows,
    counted: list[Triple[CounterfactualRow]],
    best: dict[_Finding, list[_Rank]],
    gains: Set[_Finding],
) -> None:
    """Insert the counterfactuals of a source image into the best pictures of each finding."""
    for (model, method, cell), ranks in best.items():
        predictions = rows.predictions_of(model)
        if cell.label not in labels(predictions.get(rows.source.id)):
            continue
        members = [
            triple for triple in counted if triple.edit.method == method and cell in cells_of(triple.edit, cell.label)
        ]
        if members:
            gained = (model, method, cell) in gains
            candidates = [*ranks, *(_rank(triple, predictions, cell.label, gained) for triple in members)]
            ranks[:] = nsmallest(PER_FINDING, candidates)


def _rank(
    triple: Triple[CounterfactualRow], predictions: Mapping[str, PredictionRow], label: str, gained: bool = False
) -> _Rank:
    """`label` is the class in question, of several in an image; `gained`: the model is to be right with the edit."""
    compared = triple.compare(predictions)
    original, image, reference = compared.original, compared.counterfactual, compared.reference
    if original is None or image is None:
        return _Rank(True, True, 0.0, 0.0, triple.edit.id)
    changed = _differs(original, image, label) and image.holds(label) is gained
    damaged = reference is not None and _differs(original, reference, label)
    change = (image.confidence(label) or 0.0) - (original.confidence(label) or 0.0)
    return _Rank(not changed, damaged, -triple.edit.clarity, -change if gained else change, triple.edit.id)


def _differs(original: PredictionRow, edited: PredictionRow, label: str) -> bool:
    if ALL_CLASSES in original.scores:  # of several labels only the one in question matters
        return original.holds(label) != edited.holds(label)
    return edited.predicted != original.predicted


def _round_robin(groups: Iterable[list[str]], limit: int) -> list[str]:
    """Up to `limit` ids, taken from the groups in turn, so that no source image or check fills the list."""
    groups = list(groups)
    longest = max(map(len, groups), default=0)
    ids = (group[index] for index in range(longest) for group in groups if index < len(group))
    return list(islice(ids, limit))
