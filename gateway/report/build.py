"""A job's report: loads its rows, computes without a session open, then stores figures and page.

It calls no model service, except in its caller's `complete`: the services are recorded with the results. Rows are
streamed twice, first for the figures and then for the choice of pictures, which depends on the figures. A report
therefore needs the memory of its figures alone, not of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Counterfactual, Job, JobService, Report
from gateway.feedback.notes import load_notes, with_notes
from gateway.jobs.jobs import describe_test_set
from gateway.jobs.task_description import rename_masks
from gateway.methods import METHODS
from gateway.methods.checks import with_label_rank
from gateway.report.page import report_page
from gateway.report.pictures import select_pictures
from gateway.report.review_order import ReviewList
from gateway.results.class_colours import class_colours
from gateway.results.confirmation import with_confirmations
from gateway.results.designs import design_results
from gateway.results.doses import Shown, load_edit_shown, with_dose_curves, with_doses
from gateway.results.follow_ups import load_follow_ups
from gateway.results.job_rows import JobRows, load_rows
from gateway.results.measure import measure
from gateway.results.provenance import packets_of_job
from gateway.results.rounds import rounds_of
from gateway.results.stream import stream_sources
from gateway.results.views import counterfactual_views
from shared.profiles import CheckCalibration
from shared.schemas.designs import DesignResults, RoundPlan
from shared.schemas.effects import CheckErrors
from shared.schemas.finding_notes import FindingNote
from shared.schemas.reports import JobReport, ReportPictures
from shared.schemas.result_rows import CounterfactualView
from shared.schemas.results import JobResults
from shared.schemas.review_results import Calibration
from shared.schemas.service import ServiceInfo
from shared.storage import ObjectStore, image_key


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
    check: Callable[[], None] = lambda: None,
    complete: Callable[[JobRows, JobResults], JobResults] = lambda _, results: results,
) -> JobResults:
    """Measure a job whose images are finished, write its page to `key` of the store, and return the figures.

    `services`: the services that produced the results, by default the recorded ones. `calibrations`: the errors of the
    checks by data set; the job's spec names the data set. `check` is called between steps and raises to end the work.
    `complete` adds the figures that need the services (`gateway.worker.analysis_step`).

    The page depends on the rows and on recorded calls, so building it again gives the same page. No session is open
    while it computes. Raises sqlalchemy's NoResultFound for an unknown job.
    """
    with reading(sessions) as session:
        stored = _load(session, job_id, services)
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

    store.put(key, report_page(report, load, colours, packets, stored.test_set).encode())
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


def _load(session: Session, job_id: str, services: Sequence[ServiceInfo] | None) -> _Stored:
    rows = load_rows(session, job_id)
    rounds = rounds_of(session, job_id)
    return _Stored(
        rows,
        services_of(session, job_id) if services is None else services,
        load_follow_ups(session, rows.job, "confirms"),
        load_follow_ups(session, rows.job, "doses_of"),
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
) -> JobResults:
    """`write_report` and `store_report` without a lease. Call it only if no worker analyses the job."""
    key = report_key(job_id, "report")
    results = write_report(sessions, store, job_id, key, services, calibrations)
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
