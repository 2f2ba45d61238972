"""Decides which effects in cells are findings: one family per model under test and method, one fixed metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from scipy.stats import false_discovery_control

from gateway.analysis.betting import anytime_p
from gateway.analysis.certainty import LEVEL, images_needed, mean_interval, p_beyond
from gateway.analysis.effects import Differences, Floats
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE, LEAST_SOURCES
from gateway.analysis.power import assumed_accuracy, detectable_drop
from gateway.analysis.reviews import Reviewed
from gateway.analysis.validity import (
    Screened,
    breakdown_point,
    effect_among_valid,
    most_valid_accepted,
    most_valid_refused,
    pooled_errors,
    valid_shares,
)
from shared.schemas.effects import Cell, CellEffect, CheckErrors, Interval, Pool, Standing, ValidEffect
from shared.seeds import derive_seed


class HypothesisTest(NamedTuple):
    """The test of one cell in a family. `q_value`: `p_value` adjusted by Benjamini-Hochberg."""

    seed: int
    p_value: float
    q_value: float

    @property
    def rejected(self) -> bool:
        """Whether the hypothesis of no effect beyond 5 points is rejected at a false discovery rate of 5 %."""
        return self.q_value <= FALSE_DISCOVERY_RATE


@dataclass(frozen=True, slots=True)
class Checked:
    """The checks' errors by factor, and by class; and the rendered edits of each cell with their verdicts.

    `reviewed`: reviews of the job, too few to replace the errors; only those of a cell's own changed images are used.
    """

    errors: Mapping[str, CheckErrors]
    screened: Mapping[Cell, Screened]
    classes: Mapping[str, CheckErrors] = field(default_factory=dict)
    reviewed: Reviewed | None = None
    source: Literal["checks"] = field(default="checks", init=False)

    def pool(self, cell: Cell) -> Pool:
        """What the errors of a cell are pooled over."""
        if self.reviewed is not None and self.reviewed.is_decided(cell):
            return "cell"
        return pooled_errors(cell, self.errors, self.classes)[1]

    def shares(self, cell: Cell, seed: int) -> Floats | None:
        """Draws of the valid share of a cell's accepted edits, ascending; None if the checks are uncalibrated."""
        errors, _ = pooled_errors(cell, self.errors, self.classes)
        if errors is None:
            return None
        shares = valid_shares(errors, self.screened[cell], seed)
        if self.reviewed is None or not self.reviewed.is_decided(cell):
            return shares
        return self.reviewed.shares_with(cell, shares, seed)

    def is_refuted(self, cell: Cell) -> bool:
        """Whether most of a cell's own reviewed changed images are invalid."""
        return self.reviewed is not None and self.reviewed.is_refuted(cell)

    def is_upheld(self, cell: Cell) -> bool:
        """Whether a cell's own changed images were reviewed, and most of them are valid."""
        return self.reviewed is not None and self.reviewed.is_upheld(cell)

    def most_valid_refused(self, cell: Cell, seed: int) -> float | None:
        """The largest share of a cell's refused edits that may be valid; None if the checks are uncalibrated."""
        errors, _ = pooled_errors(cell, self.errors, self.classes)
        return None if errors is None else most_valid_refused(errors, self.screened[cell], seed)

    def most_valid_accepted(self, cell: Cell, seed: int) -> float | None:
        """The largest share of a cell's accepted edits that may be valid; None if the checks are uncalibrated."""
        errors, _ = pooled_errors(cell, self.errors, self.classes)
        return None if errors is None else most_valid_accepted(errors, self.screened[cell], seed)


def assess(cells: Mapping[Cell, Differences], seed: int, checked: Checked | Reviewed | None = None) -> list[CellEffect]:
    """The effects of all cells of one model under test and method, findings first, each kind by strength.

    The family is all cells with at least 12 source images, or groups of them. The metric is the difference in accuracy,
    or in IoU for segmenters. The null hypothesis of each cell is that its effect is at most 5 points, either way. A
    finding is a cell whose hypothesis Benjamini-Hochberg rejects at 5 % and whose interval, at level 1 − 5 % · rejected
    / family (false coverage rate: Benjamini & Yekutieli 2005), lies beyond 5 points. `seed` belongs to the job, model
    and method. `checked`: the validity of accepted edits, from the checks' errors or from reviews; None if unknown.
    """
    tests = hypothesis_tests(cells, seed)
    rejected = sum(test.rejected for test in tests.values())
    large = {cell: test for cell, test in tests.items() if _is_large(cells[cell])}
    effects = [
        _untested_effect(cell, differences, len(tests) + (cell not in tests))
        for cell, differences in cells.items()
        if cell not in large
    ]
    for cell, test in large.items():
        correct = cells[cell].correct
        level = 1 - FALSE_DISCOVERY_RATE * rejected / len(tests) if test.rejected else None
        selected = None if level is None else _interval(cells[cell], level, test.seed)
        standing = _standing(selected)
        least = len(correct) + 1 if standing == "nothing found" else LEAST_SOURCES
        effect = _untested_effect(cell, cells[cell], len(tests), least).model_copy(
            update={
                "interval": _interval(cells[cell], LEVEL, test.seed),
                "selected_interval": selected,
                "p_value": test.p_value,
                "q_value": test.q_value,
                "standing": standing,
                "detectable": detectable_drop(len(correct), len(tests), assumed_accuracy(cells[cell].null_accuracy)),
                "breakdown": _breakdown(selected) if standing != "nothing found" else None,
                "among_valid": _among_valid(cell, cells[cell], level or LEVEL, checked, test.seed, standing),
            }
        )
        effects.append(effect)
    return sorted(effects, key=strength)


def describe(cells: Mapping[Cell, Differences], seed: int) -> list[CellEffect]:
    """The effects of cells with 95 % intervals where there are at least 12 source images, and without tests.

    The lowest effect is first. For figures that the reader chooses after the tests were fixed.
    """
    effects = []
    for cell, differences in cells.items():
        effect = _untested_effect(cell, differences, max(1, sum(map(_is_large, cells.values()))))
        if _is_large(differences):
            own_seed = derive_seed(seed, cell.label, cell.factor, cell.value, cell.direction)
            interval = _interval(differences, LEVEL, own_seed)
            effect = effect.model_copy(update={"interval": interval, "standing": "nothing found"})
        effects.append(effect)
    return sorted(effects, key=strength)


def hypothesis_tests(cells: Mapping[Cell, Differences], seed: int) -> dict[Cell, HypothesisTest]:
    """The family of one model and method, in the order of the cells: those tested with at least 12 source images.

    Where the results decided how many images a cell gets (`left`), it is in the family with fewer too, and its p-value
    is 1: the results must not choose the family. `seed` belongs to the job, model and method; the seed of each test
    derives from it.
    """
    family = {cell: pairs for cell, pairs in cells.items() if pairs.left is not None or _is_large(pairs)}
    seeds = [derive_seed(seed, cell.label, cell.factor, cell.value, cell.direction) for cell in family]
    p_values = [_p_value(pairs, own_seed) for pairs, own_seed in zip(family.values(), seeds, strict=True)]
    q_values = false_discovery_control(np.array(p_values))
    tests = zip(seeds, p_values, q_values.tolist(), strict=True)
    return {cell: HypothesisTest(*test) for cell, test in zip(family, tests, strict=True)}


def _p_value(differences: Differences, seed: int) -> float:
    if not _is_large(differences):
        return 1.0
    if differences.left is None:
        return p_beyond(differences.correct, BEYOND, seed)
    return anytime_p(differences.correct, BEYOND, differences.left)


def _is_large(differences: Differences) -> bool:
    return len(differences.correct) >= LEAST_SOURCES


def _interval(differences: Differences, level: float, seed: int) -> Interval:
    return mean_interval(differences.correct, level, seed, differences.left)


def _breakdown(selected: Interval | None) -> float | None:
    return None if selected is None else breakdown_point(max(-selected.high, selected.low))


def _among_valid(
    cell: Cell,
    differences: Differences,
    level: float,
    checked: Checked | Reviewed | None,
    seed: int,
    standing: Standing,
) -> ValidEffect | None:
    """The effect among valid edits. An improvement stands only if people looked at its own images.

    The errors of the checks are those of edits. An arm that lost the class looks like an improvement by a valid edit.
    """
    shares = None if checked is None else checked.shares(cell, seed)
    if checked is None or shares is None:
        return None
    pool, left = checked.pool(cell), differences.left
    effect = effect_among_valid(differences.correct, level, shares, seed, checked.source, pool, left)
    holds = checked.is_upheld(cell) if standing == "improvement" else not checked.is_refuted(cell)
    return effect.model_copy(update={"stands": effect.stands and holds})


def _untested_effect(cell: Cell, differences: Differences, family: int, least: int = LEAST_SOURCES) -> CellEffect:
    """The effect of a cell without its test. `family`: the number of tests, that of this cell included."""
    probability, groups = float(differences.p_truth.mean()), len(differences.correct)
    sources = groups if differences.sources is None else differences.sources
    return CellEffect(
        cell=cell,
        sources=sources,
        groups=None if sources == groups else groups,
        counterfactuals=differences.counterfactuals,
        delta_accuracy=float(differences.correct.mean()),
        delta_probability=None if math.isnan(probability) else probability,
        standing="too few images",
        images_needed=images_needed(differences.correct, BEYOND, least, family),
    )


def _standing(selected: Interval | None) -> Standing:
    if selected is not None and selected.high < -BEYOND:
        return "weakness"
    if selected is not None and selected.low > BEYOND:
        return "improvement"
    return "nothing found"


STANDINGS: tuple[Standing, ...] = ("weakness", "improvement", "nothing found", "too few images")


def strength(effect: CellEffect) -> tuple[object, ...]:
    """Sort key: standing; for findings the interval's bound nearest to 0, strongest first; effect; name of the cell."""
    cell = effect.cell
    bound = 0.0
    if effect.selected_interval is not None:
        bound = max(-effect.selected_interval.high, effect.selected_interval.low)
    name = (cell.label, cell.factor, cell.value, cell.direction)
    return (STANDINGS.index(effect.standing), -bound, effect.delta_accuracy, *name)
