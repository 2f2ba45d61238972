"""A job's report: loads its rows, computes without a session open, then stores figures and page.

It calls no model service: which of them made the results is recorded with the results. Rows are streamed twice, for
the figures and for the choice of pictures, which depends on them: so a report takes the memory of its figures, not of
its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pydantic import JsonValue
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Counterfactual, JobService, Report
from gateway.jobs.task_description import renamed_masks
from gateway.report.page import report_page
from gateway.report.pictures import select_pictures
from gateway.report.review_order import ReviewList
from gateway.results.class_colours import class_colours
from gateway.results.classification import load_rows
from gateway.results.measure import measure
from gateway.results.stream import stream_sources
from gateway.results.views import counterfactual_views
from shared.profiles import CheckCalibration
from shared.schemas.results import Calibration, JobResults
from shared.schemas.service import ServiceInfo
from shared.storage import ObjectStore, image_key


def report_key(job_id: str, name: str) -> str:
    """The key of a job's report in the object store. Each analysis has its own, so none replaces another's page.

    Housekeeping removes the pages that no row names.
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
) -> JobResults:
    """Measure a job whose images are finished, write its page to `key` of the store, and return the figures.

    `services`: those that made the results; None for those that were recorded with them. `calibrations`: the checks'
    errors by data set; those of the data set that the job's spec names are used. `check` is called now and
    then, and raises to end the work.

    The page depends on the rows alone, so building it again gives the same. No session is open while it computes.
    Raises sqlalchemy's NoResultFound for an unknown job.
    """
    with reading(sessions) as session:
        rows = load_rows(session, job_id)
        used = services_of(session, job_id) if services is None else services
    check()
    data = str(rows.job.spec.get("calibration") or "")
    measured = (calibrations or {}).get(data)
    results = measure(rows, used, None if measured is None else _measured_elsewhere(data, measured, used))
    check()
    review = ReviewList(results)
    with reading(sessions) as session:
        selection = select_pictures(review.watching(stream_sources(session, job_id, rows.relation)), results)
        chosen = session.scalars(select(Counterfactual).where(Counterfactual.id.in_(selection.ids))).all()
        views = {view.id: view for view in counterfactual_views(session, chosen)}
    results = results.model_copy(update={"review": review.order()})
    colours = class_colours(rows.job.classes, renamed_masks(rows.job))

    def load(digest: str) -> bytes:
        check()
        return store.get(image_key(digest))

    store.put(key, report_page(results, selection, views, load, colours).encode())
    return results


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
    """`write_report` and `store_report` without a lease: only where no worker analyses the job."""
    key = report_key(job_id, "report")
    results = write_report(sessions, store, job_id, key, services, calibrations)
    with sessions.begin() as session:
        store_report(session, job_id, key, results)
    return results


def services_of(session: Session, job_id: str) -> list[ServiceInfo]:
    """The model services that made a job's results, in the order of their first use.

    For a job of an older version, which recorded none, those of its last report.
    """
    query = select(JobService.info).where(JobService.job_id == job_id).order_by(JobService.created_at)
    infos: list[JsonValue] = [*session.scalars(query)]
    if not infos and (report := session.get(Report, job_id)) is not None:
        infos = [*JobResults.model_validate(report.metrics).made.services.values()]
    return [ServiceInfo.model_validate(info) for info in infos]


def _measured_elsewhere(data: str, measured: CheckCalibration, services: Sequence[ServiceInfo]) -> Calibration:
    """The errors as the figures use them; none of another scorer's weights than those that judged the job."""
    scorers = {weights.revision for info in services for weights in info.weights if weights.role == "scorer"}
    if measured.scorer and scorers - {measured.scorer}:
        return Calibration(
            data=data,
            judged_by=measured.judged_by,
            not_used=f"they were measured with other scorer weights ({measured.scorer[:12]}) than this job's",
        )
    whole = [errors["default"] for errors in measured.methods.values() if "default" in errors]
    return Calibration(
        data=data,
        judged_by=measured.judged_by,
        errors=measured.methods,
        n=sum(errors.valid + errors.invalid for errors in whole),
    )
