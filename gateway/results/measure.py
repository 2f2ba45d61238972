"""Computes all figures of a job from the arrays of its rows.

The panel of reference models: a cell in which all models fail is suspect, because its images may be broken.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import numpy as np

from gateway.analysis.effects import Scores, differences
from gateway.analysis.findings import Checked, assess, describe, merge_same_pairs
from gateway.analysis.funnel import funnel
from gateway.analysis.limits import BEYOND
from gateway.analysis.power import assumed_accuracy
from gateway.analysis.reviews import Reviewed
from gateway.analysis.validity import Screened, errors_of
from gateway.database.tables import Job
from gateway.jobs.plans import checks_off
from gateway.jobs.sensitivity import OBSERVED, Conditions, planned, sensitivity_of
from gateway.jobs.task_description import rename_masks
from gateway.kinds import KINDS
from gateway.kinds.task_kind import Measurement
from gateway.methods import METHODS, JobMethod
from gateway.methods.checks import SHAPES
from gateway.methods.validity import CheckParameters
from gateway.results.cells import with_cells
from gateway.results.class_colours import class_colours
from gateway.results.estimands import counted_cells, with_bounds, with_others, with_second_scorer
from gateway.results.job_rows import JobRows, MethodRows
from gateway.results.rounds import cells_of_rounds
from gateway.results.rows import ModelRows
from gateway.results.wording import add_details, instead_in_words, nearby_sentence, panel_sentence, with_sentences
from shared.schemas.designs import RoundPlan
from shared.schemas.effects import Cell, CellEffect, Panel
from shared.schemas.plans import Sensitivity
from shared.schemas.results import Calibration, Cost, Funnel, HowMade, JobResults, MethodReviews, ModelResults
from shared.schemas.service import ServiceInfo
from shared.seeds import derive_seed


def measure(
    rows: JobRows,
    services: Sequence[ServiceInfo] = (),
    calibration: Calibration | None = None,
    rounds: Sequence[RoundPlan] = (),
) -> JobResults:
    """All figures of a job. The same rows give the same figures, bit for bit.

    `calibration`: errors of the checks on images like the job's; None if unknown. If people reviewed enough edits of a
    method, their reviews replace these errors. `rounds`: of an adaptive job; images enter its
    tests in their order.
    """
    job = rows.job
    seed = derive_seed("analysis", job.seed)
    checked = [method for method in rows.methods if METHODS[method].checked]
    reviewed = [method for method in checked if rows.reviewed.is_sufficient(method)]
    calibrated = {*reviewed, *_calibrated_methods(rows, calibration)}
    reviews = [
        review.model_copy(update={"steps": rows.steps.get(review.method, [])}) for review in rows.reviewed.figures(seed)
    ]
    if reviewed:
        calibration = _from_reviews(calibration, [review for review in reviews if review.method in reviewed])
    tested, references = _split_panel(_all_models(rows, seed, calibration, rounds), job.stored_spec.reference_models)
    return JobResults(
        sources=len(rows.truths) + rows.failed + rows.cancelled,
        sources_failed=rows.failed,
        sources_cancelled=rows.cancelled,
        failure_reasons=rows.failure_reasons,
        provisional=not (checked and calibrated.issuperset(checked)) and not _all_stand(tested),
        calibration=calibration,
        checks_off=checks_off(job.methods, job.kind),
        reviews=reviews,
        judge=rows.judge,
        sensitivity=_sensitivity(rows),
        results=with_panel(tested, references),
        references=references,
        funnels=[_funnel(job, method, rows.methods[method.name]) for method in job.methods],
        people=rows.people,
        costs=[_cost(method, method_rows) for method, method_rows in rows.methods.items()],
        outside_domain=job.stored_spec.outside_domain_note,
        made=_provenance(job, services, seed),
    )


def _all_stand(tested: Sequence[ModelResults]) -> bool:
    """Whether there are findings, and reviews of their own images or known errors of the checks let each stand."""
    findings = [effect for figures in tested for effect in figures.findings]
    return bool(findings) and not any(effect.provisional for effect in findings)


def _from_reviews(calibration: Calibration | None, reviews: Sequence[MethodReviews]) -> Calibration:
    """The calibration with reviews of this job as its source."""
    n = sum(review.accepted + review.rejected for review in reviews)
    return (calibration or Calibration()).model_copy(update={"source": "reviews", "n": n})


def _split_panel(
    figures: Sequence[ModelResults], panel: Collection[str]
) -> tuple[list[ModelResults], list[ModelResults]]:
    """The results of the models under test, and those of the reference models."""
    tested = [row for row in figures if row.model not in panel]
    return tested, [row for row in figures if row.model in panel]


def _sensitivity(rows: JobRows) -> Sensitivity:
    """What the job's source images could detect, given how many edits count and how often models are right."""
    return sensitivity_of(rows.truths, rows.job.methods, rows.job.kind, _conditions(rows))


def _all_models(
    rows: JobRows, seed: int, calibration: Calibration | None, rounds: Sequence[RoundPlan]
) -> list[ModelResults]:
    """The figures of each model, reference models too, under each method."""
    return [
        _model_results(pair_rows, rows, model, method, derive_seed(seed, method, model), calibration, rounds)
        for (model, method), pair_rows in rows.models.items()
    ]


def _calibrated_methods(rows: JobRows, calibration: Calibration | None) -> set[str]:
    """The methods whose check errors are known for every factor that their edits change."""
    errors = calibration.errors if calibration else {}
    cells = [(method, cell) for (_, method), pair in rows.models.items() for cell in pair.screened]
    unknown = {method for method, cell in cells if method in errors and errors_of(cell.factor, errors[method]) is None}
    return set(errors) - unknown


def _provenance(job: Job, services: Sequence[ServiceInfo], analysis_seed: int) -> HowMade:
    latest = {info.service: info for info in services}
    return HowMade(
        job=job.id,
        task_description=job.task_description,
        profile=job.profile,
        seed=job.seed,
        parameters={method.name: method.choice().parameters for method in job.methods},
        services=latest,
        replaced_services=[info for info in services if info.revision != latest[info.service].revision],
        uploaded_models=job.uploaded_models,
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("contrafact", "numpy", "scipy")},
        },
        analysis_seed=analysis_seed,
    )


def _conditions(rows: JobRows) -> Conditions:
    """The job's own share of edits whose pairs count, and the accuracy on their arms of the least accurate model."""
    edits = [edit for method_rows in rows.methods.values() for edit in method_rows.edits]
    if not edits:
        return planned(rows.job.stored_spec.design)
    counted = sum(edit.counted for edit in edits) / len(edits)
    references = rows.job.stored_spec.reference_models
    shares = [
        differences(pair_rows.scores, pair_rows.scores.whole).null_accuracy
        for (model, _), pair_rows in rows.models.items()
        if model not in references
    ]
    least = min((share for share in shares if share is not None), default=None)
    conditions = planned(rows.job.stored_spec.design)
    return replace(conditions, acceptance=counted, accuracy=assumed_accuracy(least), basis=OBSERVED)


def _funnel(job: Job, method: JobMethod, rows: MethodRows) -> Funnel:
    parameters = method.parameters
    return funnel(
        method.name,
        rows.edits,
        shapes=SHAPES in KINDS[job.kind].checks and METHODS[method.name].checked,
        recaption=isinstance(parameters, CheckParameters) and parameters.recaption,
        refusal=rows.refusal,
        asked_again=rows.asked_again,
        label_unchecked=rows.label_unchecked,
        moved_back=rows.moved_back,
        objects=rows.objects,
    )


def _model_results(
    rows: ModelRows,
    all_rows: JobRows,
    model: str,
    method: str,
    seed: int,
    calibration: Calibration | None,
    rounds: Sequence[RoundPlan],
) -> ModelResults:
    scores, kind = rows.scores, KINDS[all_rows.job.kind]
    measured = partial(differences, scores)
    cells = cells_of_rounds(counted_cells(scores.cells, measured), rounds)
    whole = measured(scores.whole)
    checked = _check_errors(all_rows, rows.screened, model, method, calibration)
    assessed = merge_same_pairs(assess(cells, seed, checked), scores)
    effects = with_bounds(assessed, cells, rows.refused, checked, seed)
    effects = with_others(effects, scores.cells, measured, seed, shams=scores.sham is not None, fixed=not rounds)
    effects = with_second_scorer(effects, rows.second, seed, fixed=not rounds)
    results = ModelResults(
        model=model,
        method=method,
        relation=all_rows.relation,
        metric=kind.metric,
        reference="null" if scores.sham is None else "sham",
        sources=whole.sources or 0,
        counterfactuals=whole.counterfactuals,
        left_out=rows.left_out,
        unanswered=rows.unanswered,
        cells=with_sentences(effects, cells, all_rows.relation, kind.metric, _instead(rows, effects)),
        originals=all_rows.checks[model],
        usage=all_rows.usage[model],
    )
    job, cost = all_rows.job, all_rows.methods[method].cost()
    colours = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in class_colours(job.classes, rename_masks(job))]
    measurement = Measurement(method, cost, colours, seed, all_rows.relation == "labelled")
    results = results.model_copy(update=kind.figures(rows.own, measurement))
    if (others := all_rows.others.get((model, method))) is not None:
        own_seed = derive_seed(seed, "other score")
        effects = _other_cells(others, _calibrated_errors(others.screened, method, calibration), rounds, own_seed)
        results = results.model_copy(update=kind.with_other_cells(results, effects))
    if kind.nearby is None or not results.findings:
        return results
    return with_repeats(results, kind.nearby(rows.own), rounds, seed)


def _other_cells(rows: ModelRows, checked: Checked | None, rounds: Sequence[RoundPlan], seed: int) -> list[CellEffect]:
    """The effects by the other score of the kind: a family of its own, with its bounds. Reviews do not enter it."""
    cells = cells_of_rounds(counted_cells(rows.scores.cells, partial(differences, rows.scores)), rounds)
    effects = merge_same_pairs(assess(cells, seed, checked), rows.scores)
    return with_bounds(effects, cells, rows.refused, checked, seed)


def with_repeats(
    results: ModelResults, nearby: Mapping[str, Scores], rounds: Sequence[RoundPlan], seed: int
) -> ModelResults:
    """The results; the details of each finding say whether it holds at the limits of confidence beside the job's.

    It does if the 95 % interval at that limit lies on the finding's side of zero.
    """
    sides = {effect.cell: np.sign(effect.delta_accuracy) for effect in results.findings}
    holds: dict[Cell, dict[str, bool]] = {cell: {} for cell in sides}
    for name, scores in nearby.items():
        cells = counted_cells({cell: scores.cells[cell] for cell in sides}, partial(differences, scores))
        for effect in describe(cells_of_rounds(cells, rounds), seed):
            if effect.interval is not None:
                low, high = sides[effect.cell] * np.array([effect.interval.low, effect.interval.high])
                holds[effect.cell][name] = bool(low > 0 and high > 0)
    changed = [
        effect.model_copy(update={"holds_at": held, "details": add_details(effect.details, nearby_sentence(held))})
        if (held := holds.get(effect.cell))
        else effect
        for effect in results.cells
    ]
    return results.model_copy(update={"cells": changed})


def _instead(rows: ModelRows, effects: Sequence[CellEffect]) -> dict[Cell, str]:
    """What the model calls the lost images of each weakness."""
    names = rows.own.classes
    called_instead = {
        effect.cell: [names[number] for number in rows.scores.said_instead(rows.scores.cells[effect.cell])]
        for effect in effects
        if effect.standing == "weakness"
    }
    return {cell: instead_in_words(classes) for cell, classes in called_instead.items()}


def at_threshold(figures: ModelResults, rows: JobRows, rounds: Sequence[RoundPlan], threshold: float) -> ModelResults:
    """The figures if predictions below this confidence count as none; of kinds without confidence as they are.

    They have 95 % intervals and no tests: a threshold that is moved until an effect shows would make its p-value wrong.
    """
    at_confidence = KINDS[rows.job.kind].at_confidence
    if at_confidence is None:
        return figures
    scores, own = at_confidence(rows.models[figures.model, figures.method].own, threshold, figures)
    cells = cells_of_rounds(counted_cells(scores.cells, partial(differences, scores)), rounds)
    seed = derive_seed(rows.job.seed, "confidence", figures.method, figures.model)
    return figures.model_copy(update={"cells": describe(cells, seed), **own})


def _check_errors(
    rows: JobRows, screened: Mapping[Cell, Screened], model: str, method: str, calibration: Calibration | None
) -> Checked | Reviewed | None:
    """The validity of a method's edits, from reviews if there are enough, else from the errors of the checks."""
    if not METHODS[method].checked:
        return None
    if rows.reviewed.is_sufficient(method):
        return rows.reviewed.reviewed(model, method)
    checked = _calibrated_errors(screened, method, calibration)
    return replace(checked, reviewed=rows.reviewed.reviewed(model, method))


def _calibrated_errors(screened: Mapping[Cell, Screened], method: str, calibration: Calibration | None) -> Checked:
    errors = calibration.errors.get(method, {}) if calibration else {}
    return Checked(errors, screened, calibration.classes.get(method, {}) if calibration else {})


def _cost(method: str, rows: MethodRows) -> Cost:
    rendered = sum(edit.rendered for edit in rows.edits)
    accepted = sum(not edit.rejected_by for edit in rows.edits)
    return Cost(
        method=method,
        evaluations=rows.evaluations,
        evaluations_per_rendered=rows.evaluations / rendered if rendered else None,
        evaluations_per_accepted=rows.evaluations / accepted if accepted else None,
    )


def with_panel(tested: Sequence[ModelResults], references: Sequence[ModelResults]) -> list[ModelResults]:
    """The results of the models under test; the details of each weakness say how the reference models do in its cell.

    A model fails in a cell with at least 12 source images if its effect there is below −5 points. The cell is suspect
    if all models fail, those under test and at least one reference model, which must not share a weakness by training.
    A reference model that is not right on the originals shows nothing: it has nothing to lose.
    """
    if not references:
        return list(tested)
    right = [figures for figures in references if figures.originals is None or figures.originals.lets_pass]
    return with_cells(tested, lambda figures, effect: _with_panel(figures.method, effect, tested, right))


def _with_panel(
    method: str, effect: CellEffect, tested: Sequence[ModelResults], references: Sequence[ModelResults]
) -> CellEffect:
    if effect.standing != "weakness":
        return effect
    of_tested, of_references = (_fails(method, effect.cell, models) for models in (tested, references))
    panel = Panel(
        references=sorted(of_references),
        failing=sorted(name for name, fails in of_references.items() if fails),
        suspect=bool(of_references) and all([*of_references.values(), *of_tested.values()]),
    )
    return effect.model_copy(update={"panel": panel, "details": add_details(effect.details, panel_sentence(panel))})


def _fails(method: str, cell: Cell, models: Sequence[ModelResults]) -> dict[str, bool]:
    """Whether each model fails in the cell, of those that have enough source images in it."""
    return {
        figures.model: effect.delta_accuracy < -BEYOND
        for figures in models
        for effect in figures.cells
        if figures.method == method and effect.cell == cell and effect.interval is not None
    }
