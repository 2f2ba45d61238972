"""Figures that accompany the effect in each cell: the other estimands, and bounds over refused pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import numpy as np

from gateway.analysis.bounds import MostValid, Refused, effect_bounds
from gateway.analysis.certainty import LEVEL, mean_interval
from gateway.analysis.effects import Differences, Estimand, Integers
from gateway.analysis.findings import Checked
from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.reviews import Reviewed
from gateway.results.rows import SecondColumns
from shared.schemas.effects import Cell, CellEffect, OtherEffect, OtherEstimand
from shared.seeds import derive_seed


class Measured(Protocol):
    """Per-group differences of those rows that an estimand takes."""

    def __call__(self, rows: Integers, estimand: Estimand = "pairs") -> Differences: ...


def counted_cells(cells: Mapping[Cell, Integers], measured: Measured) -> dict[Cell, Differences]:
    """The cells that have pairs in which both arms are accepted, with the differences of these."""
    counted = {cell: measured(rows) for cell, rows in cells.items()}
    return {cell: differences for cell, differences in counted.items() if differences.counterfactuals}


def with_others(
    effects: Sequence[CellEffect],
    cells: Mapping[Cell, Integers],
    measured: Measured,
    seed: int,
    *,
    shams: bool,
    fixed: bool = True,
) -> list[CellEffect]:
    """The effects, each with those of the other estimands; `shams`: whether they are measured against sham arms.

    `fixed`: whether the number of images was fixed beforehand. Otherwise they have no intervals.
    """
    estimands: tuple[Literal["edits", "null"], ...] = ("edits", "null") if shams else ("edits",)
    return [
        effect.model_copy(
            update={
                "others": [
                    other_effect
                    for estimand in estimands
                    if (
                        other_effect := _other_effect(
                            effect, estimand, measured(cells[effect.cell], estimand), seed, fixed=fixed
                        )
                    )
                ]
            }
        )
        for effect in effects
    ]


def with_bounds(
    effects: Sequence[CellEffect],
    cells: Mapping[Cell, Differences],
    refused: Mapping[Cell, Refused],
    checked: Checked | Reviewed | None,
    seed: int,
) -> list[CellEffect]:
    """The effects, each with its bounds if the refused pairs that may be valid had been counted."""
    no_pairs = Refused(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, bool))
    bounded = []
    for effect in effects:
        cell = effect.cell
        own_seed = derive_seed(seed, cell.label, cell.factor, cell.value, cell.direction)
        most_valid = _most_valid(cell, checked, own_seed)
        bounds = effect_bounds(cells[cell], refused.get(cell, no_pairs), most_valid, own_seed)
        bounded.append(effect.model_copy(update={"bounds": bounds}))
    return bounded


def _most_valid(cell: Cell, checked: Checked | Reviewed | None, seed: int) -> MostValid:
    """The largest shares of a cell's refused pairs that may be valid; 1 where that is not known."""
    refused = checked.most_valid_refused(cell, seed) if checked else None
    accepted = checked.most_valid_accepted(cell, seed) if checked else None
    return MostValid(
        refused=1.0 if refused is None else refused,
        lost=1.0 if accepted is None else accepted,
        source=checked.source if checked and refused is not None else "none",
    )


def with_second_scorer(
    effects: Sequence[CellEffect], second: SecondColumns, seed: int, *, fixed: bool = True
) -> list[CellEffect]:
    """The effects, each with those among the pairs that both scorers accept, and that the second one accepts.

    `fixed`: as in `with_others`.
    """
    estimands: tuple[tuple[OtherEstimand, Mapping[Cell, Differences]], ...] = (
        ("both", second.by_both_scorers()),
        ("second", second.by_second_scorer()),
    )
    return [
        effect.model_copy(
            update={
                "others": effect.others
                + [
                    other_effect
                    for estimand, cells in estimands
                    if effect.cell in cells
                    and (other_effect := _other_effect(effect, estimand, cells[effect.cell], seed, fixed=fixed))
                ]
            }
        )
        for effect in effects
    ]


def _other_effect(
    effect: CellEffect, estimand: OtherEstimand, differences: Differences, seed: int, *, fixed: bool
) -> OtherEffect | None:
    if not differences.counterfactuals:
        return None
    interval = None
    if estimand == "edits" and differences.counterfactuals == effect.counterfactuals:
        interval = effect.interval  # the same pairs
    elif fixed and len(differences.correct) >= LEAST_SOURCES:
        interval = mean_interval(
            differences.correct, LEVEL, derive_seed(seed, estimand, *effect.cell.model_dump().values())
        )
    probability = float(differences.p_truth.mean())
    return OtherEffect(
        estimand=estimand,
        sources=len(differences.correct) if differences.sources is None else differences.sources,
        counterfactuals=differences.counterfactuals,
        delta_accuracy=float(differences.correct.mean()),
        delta_probability=None if math.isnan(probability) else probability,
        interval=interval,
    )
