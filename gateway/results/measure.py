"""The figures of a job: arrays of its rows in, all measures out."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import numpy as np

from gateway.analysis.effects import differences
from gateway.analysis.failure_points import failure_points
from gateway.analysis.findings import Checked, assess
from gateway.analysis.funnel import funnel
from gateway.analysis.metrics import paper_metrics
from gateway.analysis.power import assumed_accuracy
from gateway.analysis.reviews import Reviewed
from gateway.analysis.validity import Screened
from gateway.database.tables import Job
from gateway.jobs.sensitivity import PLANNED, Conditions, sensitivity_of
from gateway.jobs.task_description import renamed_masks
from gateway.methods import METHODS
from gateway.results.class_colours import class_colours
from gateway.results.classification import JobRows, MethodRows, ModelRows
from gateway.results.segmentation import SegmentedRows, by_source, segmentation_metrics
from gateway.results.wording import with_sentences
from shared.schemas.jobs import MethodChoice
from shared.schemas.results import (
    Calibration,
    Cell,
    Cost,
    Funnel,
    HowMade,
    JobResults,
    ModelResults,
)
from shared.schemas.service import ServiceInfo
from shared.seeds import derive_seed


def measure(rows: JobRows, services: Sequence[ServiceInfo] = (), calibration: Calibration | None = None) -> JobResults:
    """All figures of a job. The same rows give the same figures, bit for bit.

    `calibration`: errors of the checks on images like the job's; None where they are not known. Where people reviewed
    enough edits of a method, their reviews replace these errors.
    """
    job = rows.job
    seed = derive_seed("analysis", job.seed)
    used = {info.service: info for info in services}  # the last of each name
    checked = [method for method in rows.methods if METHODS[method].checked]
    by_people = [method for method in checked if rows.reviewed.enough(method)]
    calibrated = [method for method in checked if method in by_people or (calibration and method in calibration.errors)]
    provisional = calibrated != checked or not checked
    reviews = rows.reviewed.figures(seed)
    if by_people:
        n = sum(review.accepted + review.rejected for review in reviews if review.method in by_people)
        errors = calibration or Calibration()
        calibration = errors.model_copy(update={"source": "reviews", "n": n})
    return JobResults(
        sources=len(rows.labels) + rows.failed + rows.cancelled,
        sources_failed=rows.failed,
        sources_cancelled=rows.cancelled,
        failure_reasons=rows.failure_reasons,
        provisional=provisional,
        calibration=calibration,
        reviews=reviews,
        sensitivity=sensitivity_of(
            [label for labels in rows.labels for label in labels], job.methods, job.kind, _conditions(rows)
        ),
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
            task_description=job.task_description,
            profile=job.profile,
            seed=job.seed,
            parameters={method.name: method.parameters for method in job.methods},
            services={name: info.model_dump(mode="json") for name, info in used.items()},
            replaced_services=[
                info.model_dump(mode="json") for info in services if info.revision != used[info.service].revision
            ],
            uploaded_models=job.uploaded_models,
            versions={
                "python": platform.python_version(),
                **{name: version(name) for name in ("contrafact", "numpy", "scipy")},
            },
            analysis_seed=seed,
        ),
    )


def _conditions(rows: JobRows) -> Conditions:
    """The job's own share of accepted edits, and the accuracy on null arms of its least accurate model."""
    fates = [fate for method_rows in rows.methods.values() for fate in method_rows.fates]
    if not fates:
        return PLANNED
    accepted = sum(not fate.refused_by for fate in fates) / len(fates)
    nulls = [pair_rows.outcomes.null.correct for pair_rows in rows.models.values() if len(pair_rows.outcomes.source)]
    least = min((float(right.mean()) for right in nulls), default=None)
    return Conditions(accepted, assumed_accuracy(least), observed=True)


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
        cells=with_sentences(assess(cells, seed, checked), cells, relation),
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
        cells=with_sentences(assess(cells, seed, checked), cells, relation, "iou"),
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
    errors = calibration.errors.get(method) if calibration else None
    return Checked(errors, screened) if errors else None


def _cost(method: str, rows: MethodRows) -> Cost:
    rendered = sum(fate.rendered for fate in rows.fates)
    accepted = sum(not fate.refused_by for fate in rows.fates)
    return Cost(
        method=method,
        evaluations=rows.evaluations,
        evaluations_per_rendered=rows.evaluations / rendered if rendered else None,
        evaluations_per_accepted=rows.evaluations / accepted if accepted else None,
    )
