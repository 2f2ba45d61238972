"""Dose curves of cells: computed from the rows of a job of doses, or of corruptions, and added to the findings.

A job of doses has a cell for each dose of a weakness, and one for the edit undone (`gateway.methods.doses` names their
values). Its curve stands on the cell of the full dose. The report of the job with the weakness takes it from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.doses import dose_trend, interval_of, return_verdict, trend_verdict
from gateway.analysis.effects import Floats, Integers, Scores, Units, differences
from gateway.analysis.failure_points import corruption_of
from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.methods import METHODS
from gateway.methods.checks import DIRECTION
from gateway.methods.doses import DOSES, DosesParameters, value_at_dose, value_undone
from gateway.results.cells import value_side, with_cells
from gateway.results.job_rows import JobRows
from gateway.results.wording import add_details, dose_sentence
from shared.schemas.diffusion import SEVERITIES
from shared.schemas.effects import FULL_DOSE, Cell, CellEffect, DoseCurve, DosedParameter, DosePoint, Undone
from shared.schemas.results import JobResults, ModelResults
from shared.seeds import derive_seed

Shown = Mapping[Cell, float]


@dataclass(frozen=True, slots=True)
class CellDoses:
    """The cells of a method's curve by dose, the dosed parameter's value at each, and the cell of the edit undone."""

    method: str
    parameter: DosedParameter
    cells: dict[float, Cell]
    values: dict[float, float]
    undone: Cell | None = None


def load_edit_shown(session: Session, job_id: str) -> Shown:
    """The mean directional similarity of the counted edits of each cell of a job of doses, in −1 … 1."""
    c, s = Counterfactual, SourceImage
    edits = (
        select(s.ground_truth, c.factor, c.from_value, c.to_value, c.scores[DIRECTION].as_float())
        .join(s, c.source_image_id == s.id)
        .where(c.job_id == job_id, c.method == DOSES, c.arm == "edit", c.counted.is_(True))
    )
    shown: dict[Cell, list[float]] = {}
    for label, factor, old, new, direction in session.execute(edits):
        for value, side in ((old, "from"), (new, "to")):
            if value and label is not None and direction is not None:
                cell = Cell(label=label, factor=factor, value=value, direction=side)
                shown.setdefault(cell, []).append(direction)
    return {cell: float(np.mean(scores)) for cell, scores in shown.items()}


def with_dose_curves(results: JobResults, rows: JobRows, shown: Shown) -> JobResults:
    """The results; cells at full dose, and findings among corruptions, have their dose curve."""
    models = []
    for figures in results.results:
        pair = rows.models.get((figures.model, figures.method))
        if pair is not None and (figures.method == DOSES or METHODS[figures.method].severities):
            seed = derive_seed(results.made.analysis_seed, "doses", figures.model)
            figures = _with_curves(figures, pair.scores, rows.job, shown, seed)
        models.append(figures)
    return results.model_copy(update={"results": models})


def _with_curves(figures: ModelResults, scores: Scores, job: Job, shown: Shown, seed: int) -> ModelResults:
    cells = []
    for effect in figures.cells:
        doses = doses_of_cell(effect, figures.method, job)
        curve = None if doses is None else curve_of(scores, doses, job.id, shown, seed)
        cells.append(effect if curve is None else with_curve(effect, curve))
    return figures.model_copy(update={"cells": cells})


def with_curve(effect: CellEffect, curve: DoseCurve) -> CellEffect:
    """The effect with its dose curve, which its details describe."""
    return effect.model_copy(update={"dose": curve, "details": add_details(effect.details, dose_sentence(curve))})


def doses_of_cell(effect: CellEffect, method: str, job: Job) -> CellDoses | None:
    """The doses of a cell: of one at full dose, or of a finding among corruptions; None for all others."""
    cell = effect.cell
    if METHODS[method].severities:
        if effect.standing not in ("weakness", "improvement"):
            return None
        kind = corruption_of(cell.value)[0]
        at = {float(severity): f"{kind} {severity}" for severity in SEVERITIES}
        cells = {dose: cell.model_copy(update={"value": value}) for dose, value in at.items()}
        return CellDoses(method, "severity", cells, {dose: dose for dose in cells})
    parameters = next(method.parameters for method in job.methods if method.name == DOSES)
    assert isinstance(parameters, DosesParameters), "the report of a job reads its parameters"
    side = value_side(cell)
    edits = [
        edit
        for edit in parameters.edits
        if edit.factor == cell.factor and value_at_dose(getattr(edit, side), FULL_DOSE) == cell.value
    ]
    if not edits:
        return None
    base = getattr(edits[0], side)
    cells = {dose: cell.model_copy(update={"value": value_at_dose(base, dose)}) for dose in parameters.doses}
    values = {dose: float(np.mean([parameters.value_at(dose, edit) for edit in edits])) for dose in parameters.doses}
    return CellDoses(
        parameters.method, parameters.parameter, cells, values, cell.model_copy(update={"value": value_undone(base)})
    )


def curve_of(scores: Scores, doses: CellDoses, job: str, shown: Shown, seed: int) -> DoseCurve | None:
    """The curve over those source images that count at every dose; None if there are none."""
    by_dose = [_counts(scores, cell) for cell in doses.cells.values()]
    common = _common_sources(scores, by_dose)
    if not len(common):
        return None
    own_seed = derive_seed(seed, *next(iter(doses.cells.values())).model_dump().values())
    at_doses = [differences(scores, _of_sources(scores, rows, common)) for rows in by_dose]
    effects = np.stack([at.correct for at in at_doses], axis=1)
    trend, interval = dose_trend(effects, np.asarray([*doses.cells]), own_seed)
    points = [
        DosePoint(
            dose=dose,
            value=doses.values[dose],
            delta_accuracy=float(column.mean()),
            interval=interval_of(column, own_seed),
            edit_shown=shown.get(cell),
        )
        for (dose, cell), column in zip(doses.cells.items(), effects.T, strict=True)
    ]
    full = next((point for point in points if point.dose == FULL_DOSE), points[-1])
    if doses.parameter == "severity":  # whose doses are 1 to 5
        full = points[-1]
    return DoseCurve(
        job=job,
        method=doses.method,
        parameter=doses.parameter,
        sources=len(common),
        groups=None if len(effects) == len(common) else len(effects),
        points=points,
        trend=trend,
        trend_interval=interval,
        verdict=trend_verdict(interval, full.delta_accuracy),
        undone=None if doses.undone is None else _undone(scores, doses, doses.undone, own_seed),
    )


def _undone(scores: Scores, doses: CellDoses, cell: Cell, seed: int) -> Undone | None:
    """The edit undone, over the source images that count undone and at full dose; None if there are none."""
    undone, full = _counts(scores, cell), _counts(scores, doses.cells[FULL_DOSE])
    common = _common_sources(scores, [undone, full])
    if not len(common):
        return None
    undone, full = (_of_sources(scores, rows, common) for rows in (undone, full))
    right = [_accuracy(scores, rows, scores.counterfactual) for rows in (undone, full)]
    remaining = right[0] - _accuracy(scores, undone, scores.original[scores.image])
    regained = right[0] - right[1]
    intervals = interval_of(remaining, seed), interval_of(regained, seed)
    return Undone(
        verdict=return_verdict(*intervals),
        sources=len(common),
        remaining=float(remaining.mean()),
        remaining_interval=intervals[0],
        regained=float(regained.mean()),
        regained_interval=intervals[1],
    )


def _counts(scores: Scores, cell: Cell) -> Integers:
    """The rows of a cell whose pairs count."""
    return scores.rows_in(scores.cells.get(cell, np.zeros(0, np.int64)))


def _common_sources(scores: Scores, cells: Sequence[Integers]) -> Integers:
    return reduce(np.intersect1d, (np.unique(scores.source[scores.image[rows]]) for rows in cells))


def _of_sources(scores: Scores, rows: Integers, sources: Integers) -> Integers:
    return rows[np.isin(scores.source[scores.image[rows]], sources)]


def _accuracy(scores: Scores, rows: Integers, correct: Floats) -> Floats:
    """How often the model is right in each group, by rows."""
    image = scores.image[rows]
    return Units.of(scores.source[image], scores.cluster[image]).means(correct[rows])


def with_doses(results: JobResults, dosed: Iterable[JobResults]) -> JobResults:
    """The results; each weakness has the latest dose curve for the same model in the same cell."""
    curves = {
        (figures.model, effect.dose.method, effect.cell): effect.dose
        for job in dosed
        for figures in job.results
        for effect in figures.cells
        if effect.dose is not None
    }
    if not curves:
        return results

    def with_own(figures: ModelResults, effect: CellEffect) -> CellEffect:
        at_full = effect.cell.model_copy(update={"value": value_at_dose(effect.cell.value, FULL_DOSE)})
        curve = curves.get((figures.model, figures.method, at_full))
        return effect if curve is None or effect.standing != "weakness" else with_curve(effect, curve)

    return results.model_copy(update={"results": with_cells(results.results, with_own)})
