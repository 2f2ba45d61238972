"""A finished job's report: loads its rows, computes without a session open, then stores figures and page.

Rows are streamed twice, for the figures and for the choice of pictures, which depends on them: so a report takes the
memory of its figures, not of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Counterfactual, Report
from gateway.jobs.task_description import renamed_masks
from gateway.report.page import report_page
from gateway.report.pictures import select_pictures
from gateway.report.review_order import ReviewList
from gateway.results.class_colours import class_colours
from gateway.results.classification import load_rows
from gateway.results.measure import measure
from gateway.results.stream import stream_sources
from gateway.results.views import counterfactual_views
from shared.schemas.results import Calibration, CheckErrors, JobResults
from shared.schemas.service import ServiceInfo
from shared.storage import ObjectStore, image_key


def build_report(
    sessions: Sessions,
    store: ObjectStore,
    job_id: str,
    services: Sequence[ServiceInfo] = (),
    calibrations: Mapping[str, Mapping[str, CheckErrors]] | None = None,
) -> JobResults:
    """Measure a finished job, write its report to the store and its row to the database; return the figures.

    `calibrations`: the checks' errors by data set and factor; those of the data set that the job's spec names are used.
    The page depends on the rows alone, so building it again replaces it by the same. No session is open while it
    computes. Raises sqlalchemy's NoResultFound for an unknown job.
    """
    with reading(sessions) as session:
        rows = load_rows(session, job_id)
    data = str(rows.job.spec.get("calibration") or "")
    errors = (calibrations or {}).get(data)
    results = measure(rows, services, None if errors is None else _measured_elsewhere(data, errors))
    review = ReviewList(results)
    with reading(sessions) as session:
        selection = select_pictures(review.watching(stream_sources(session, job_id, rows.relation)), results)
        chosen = session.scalars(select(Counterfactual).where(Counterfactual.id.in_(selection.ids))).all()
        views = {view.id: view for view in counterfactual_views(session, chosen)}
    results = results.model_copy(update={"review": review.order()})
    colours = class_colours(rows.job.classes, renamed_masks(rows.job))
    page = report_page(results, selection, views, lambda digest: store.get(image_key(digest)), colours)
    key = f"reports/{job_id}.html"
    store.put(key, page.encode())
    with sessions.begin() as session:
        session.merge(Report(job_id=job_id, object_key=key, metrics=results.model_dump(mode="json")))
    return results


def _measured_elsewhere(data: str, errors: Mapping[str, CheckErrors]) -> Calibration:
    whole = errors.get("default")
    return Calibration(data=data, errors=dict(errors), n=whole.valid + whole.invalid if whole else 0)
