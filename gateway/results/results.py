"""The figures and the report of a job from its rows. Loads, computes without an open session, then stores.

Rows are streamed twice, for the figures and for the choice of pictures, which depends on the figures. So a report takes
the memory of its figures, not of its rows.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import numpy as np
from sqlalchemy import select

from gateway.analysis.effects import differences
from gateway.analysis.failure_points import failure_points
from gateway.analysis.findings import Checked, assess
from gateway.analysis.funnel import funnel
from gateway.analysis.metrics import paper_metrics
from gateway.analysis.reviews import Reviewed
from gateway.analysis.validity import Screened
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Counterfactual, Job, Report
from gateway.jobs.sensitivity import sensitivity_of
from gateway.jobs.task_description import renamed_masks
from gateway.methods import METHODS
from gateway.report.overlays import class_colours
from gateway.report.page import report_page
from gateway.report.pictures import select_pictures
from gateway.report.review_order import ReviewList
from gateway.results.classification import JobRows, MethodRows, ModelRows, load_rows
from gateway.results.segmentation import SegmentedRows, by_source, segmentation_metrics
from gateway.results.stream import stream_sources
from gateway.results.views import counterfactual_views
from shared.schemas.jobs import MethodChoice
from shared.schemas.results import (
    Calibration,
    Cell,
    CheckErrors,
    Cost,
    Funnel,
    HowMade,
    JobResults,
    ModelResults,
)
from shared.schemas.service import ServiceInfo
from shared.seeds import derive_seed
from shared.storage import ObjectStore, image_key


def measure(rows: JobRows, services: Sequence[ServiceInfo] = (), calibration: Calibration | None = None) -> JobResults:
    """All figures of a job. The same rows give the same figures, bit for bit.

    `calibration`: errors of the checks on images like the job's; None where they are not known. Where people reviewed
    enough edits of a method, their reviews replace these errors.
    """
    job = rows.job
    seed = derive_seed("analysis", job.seed)
    checked = [method for method in rows.methods if METHODS[method].checked]
    by_people = [method for method in checked if rows.reviewed.enough(method)]
    provisional = calibration is None and (by_people != checked or not checked)
    reviews = rows.reviewed.figures(seed)
    if by_people:
        n = sum(review.accepted + review.rejected for review in reviews if review.method in by_people)
        errors = calibration or Calibration()
        calibration = errors.model_copy(update={"source": "reviews", "n": n})
    return JobResults(
        sources=len(rows.labels) + rows.failed,
        sources_failed=rows.failed,
        provisional=provisional,
        calibration=calibration,
        reviews=reviews,
        sensitivity=sensitivity_of([label for labels in rows.labels for label in labels], job.methods, job.kind),
        results=[
            _model_results(pair_rows, rows, model, method, derive_seed(seed, method, model), calibration)
            for (model, method), pair_rows in rows.models.items()
        ]
        + [
            _segmenter_results(pair_rows, rows, model, method, derive_seed(seed, method, model), calibration)
            for (model, method), pair_rows in rows.segmented.items()
        ],
        funnels=[_funnel(job, method, rows.methods[method.name]) for method in job.methods],
        costs=[_cost(method, method_rows) for method, method_rows in rows.methods.items()],
        made=HowMade(
            job=job.id,
            task=job.task_description,
            profile=job.profile,
            seed=job.seed,
            parameters={method.name: method.parameters for method in job.methods},
            services={info.service: info.model_dump(mode="json") for info in services},
            uploaded_models=job.uploaded_models,
            versions={
                "python": platform.python_version(),
                **{name: version(name) for name in ("contrafact", "numpy", "scipy")},
            },
            analysis_seed=seed,
        ),
    )


def _funnel(job: Job, method: MethodChoice, rows: MethodRows) -> Funnel:
    return funnel(
        method.name,
        rows.fates,
        shapes=job.kind == "segmentation" and METHODS[method.name].checked,
        recaption=bool(method.parameters.get("recaption")),
    )


def _model_results(
    rows: ModelRows, all_rows: JobRows, model: str, method: str, seed: int, calibration: Calibration | None
) -> ModelResults:
    outcomes, relation = rows.outcomes, all_rows.relation
    cells = {cell: differences(outcomes, members) for cell, members in outcomes.cells.items()}
    checked = _checked(all_rows, rows.screened, model, method, calibration)
    return ModelResults(
        model=model,
        method=method,
        relation=relation,
        sources=len(np.unique(outcomes.source)),
        counterfactuals=len(outcomes.source),
        left_out=rows.left_out,
        cells=assess(cells, relation, seed, checked),
        metrics=paper_metrics(outcomes),
        failure_points=failure_points(outcomes) if method == "corruptions" else [],
    )


def _segmenter_results(
    rows: SegmentedRows, all_rows: JobRows, model: str, method: str, seed: int, calibration: Calibration | None
) -> ModelResults:
    job, relation = all_rows.job, all_rows.relation
    cells = {cell: by_source(rows.scores, members) for cell, members in rows.scores.cells.items()}
    colours = [
        f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in class_colours(job.classes, renamed_masks(job))
    ]
    checked = _checked(all_rows, rows.screened, model, method, calibration)
    return ModelResults(
        model=model,
        method=method,
        relation=relation,
        metric="iou",
        sources=len(np.unique(rows.scores.source)),
        counterfactuals=len(rows.scores.source),
        left_out=rows.left_out,
        cells=assess(cells, relation, seed, checked, "iou"),
        segmentation=segmentation_metrics(rows, colours, seed),
    )


def _checked(
    rows: JobRows, screened: Mapping[Cell, Screened], model: str, method: str, calibration: Calibration | None
) -> Checked | Reviewed | None:
    """What is known of the validity of a method's edits: from people's reviews, else from the checks' errors."""
    if not METHODS[method].checked:
        return None
    if rows.reviewed.enough(method):
        return rows.reviewed.reviewed(model, method)
    return Checked(calibration.errors, screened) if calibration else None


def _cost(method: str, rows: MethodRows) -> Cost:
    rendered = sum(fate.rendered for fate in rows.fates)
    accepted = sum(not fate.refused_by for fate in rows.fates)
    return Cost(
        method=method,
        evaluations=rows.evaluations,
        evaluations_per_rendered=rows.evaluations / rendered if rendered else None,
        evaluations_per_accepted=rows.evaluations / accepted if accepted else None,
    )


def _measured_elsewhere(data: str, errors: Mapping[str, CheckErrors]) -> Calibration:
    whole = errors.get("default")
    return Calibration(data=data, errors=dict(errors), n=whole.valid + whole.invalid if whole else 0)


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
