"""Decides which effects in cells are findings: one family per model under test and method, one fixed metric."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.stats import false_discovery_control

from gateway.analysis.certainty import LEVEL, effect_interval, images_needed, loss_limit, p_lost
from gateway.analysis.effects import Differences, Floats, Scores
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE, LEAST_SOURCES, SAME_PAIRS
from gateway.analysis.power import assumed_accuracy, detectable_drop
from gateway.analysis.reviews import OwnSample, Reviewed, effect_of_changed, reviews_needed
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
    """The tests of one cell in its families: of losses, of gains, and of a loss of any size.

    `lost`, `gained`: p-values of the hypotheses that at most 5 points are lost, and gained. `q_lost`, `q_gained`: each
    adjusted by Benjamini-Hochberg over all cells. `any_lost`, `q_any_lost`: of the hypothesis that nothing is lost,
    over the cells that are no weaknesses; None of a weakness.
    """

    seed: int
    lost: float
    q_lost: float
    gained: float
    q_gained: float
    any_lost: float | None
    q_any_lost: float | None

    @property
    def rejected(self) -> bool:
        """Whether a hypothesis of an effect of at most 5 points is rejected at a false discovery rate of 5 %."""
        return self.standing in ("weakness", "improvement")

    @property
    def standing(self) -> Standing:
        """What the tests show."""
        if self.q_lost <= FALSE_DISCOVERY_RATE:
            return "weakness"
        if self.q_gained <= FALSE_DISCOVERY_RATE:
            return "improvement"
        suspected = self.q_any_lost is not None and self.q_any_lost <= FALSE_DISCOVERY_RATE
        return "suspected weakness" if suspected else "nothing found"


@dataclass(frozen=True, slots=True)
class Checked:
    """The checks' errors by factor, and by class (empty: unknown); and the rendered edits of cells with their verdicts.

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

    def own_sample(self, cell: Cell) -> OwnSample | None:
        """The reviewed sample of a cell's own changed images, if it is large enough or mostly invalid."""
        return None if self.reviewed is None else self.reviewed.own_sample(cell)

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
    or in IoU for segmenters. A weakness is a cell whose hypothesis of a loss of at most 5 points Benjamini-Hochberg
    rejects at 5 %; an improvement one whose hypothesis of a gain of at most 5 points it rejects, in a family of its
    own. The interval of a finding is one-sided, at level 1 − 5 % · rejected / family (false coverage rate: Benjamini &
    Yekutieli 2005), and lies beyond 5 points. A suspected weakness loses something: Benjamini-Hochberg at 5 % over the
    cells that are no weaknesses. `seed` belongs to the job, model and method. `checked`: the validity of accepted
    edits, from the checks' errors or from reviews; None if unknown.
    """
    tests = hypothesis_tests(cells, seed)
    found = Counter(test.standing for test in tests.values())
    large = {cell: test for cell, test in tests.items() if _is_large(cells[cell])}
    effects = [
        _untested_effect(cell, differences, len(tests) + (cell not in tests))
        for cell, differences in cells.items()
        if cell not in large
    ]
    for cell, test in large.items():
        pairs, standing = cells[cell], test.standing
        n = len(pairs.correct)
        level = 1 - FALSE_DISCOVERY_RATE * found[standing] / len(tests) if test.rejected else None
        selected = None if level is None else _beyond_limit(pairs, standing, level, test.seed)
        loses = pairs.correct.mean() < 0
        effect = _untested_effect(cell, pairs, len(tests), LEAST_SOURCES if test.rejected else n + 1).model_copy(
            update={
                "interval": effect_interval(pairs, LEVEL, test.seed),
                "loss_limit": loss_limit(pairs, LEVEL, test.seed),
                "selected_interval": selected,
                "p_value": test.lost if loses else test.gained,
                "q_value": test.q_lost if loses else test.q_gained,
                "q_any_loss": test.q_any_lost,
                "standing": standing,
                "detectable": detectable_drop(n, len(tests), assumed_accuracy(pairs.null_accuracy), pairs.paired),
                "breakdown": _breakdown(selected),
                "reviews_needed": _reviews_needed(pairs, level, standing, test.seed),
                "among_valid": _among_valid(cell, pairs, level, checked, test.seed, standing),
            }
        )
        effects.append(effect)
    return sorted(effects, key=strength)


def merge_same_pairs(effects: Sequence[CellEffect], scores: Scores) -> list[CellEffect]:
    """The effects; a finding of a class whose change lies in the pairs of a stronger one is `part_of` that one."""
    merged: dict[Cell, Cell] = {}
    firsts: list[CellEffect] = []
    for effect in sorted(effects, key=lambda effect: (*strength(effect)[:3], effect.cell.direction == "from")):
        if effect.standing not in ("weakness", "improvement"):
            continue
        kind = effect.standing, effect.cell.label
        alike = (first for first in firsts if (first.standing, first.cell.label) == kind)
        first = next((first for first in alike if _shared_change(effect, first, scores) >= SAME_PAIRS), None)
        if first is None:
            firsts.append(effect)
        else:
            merged[effect.cell] = first.cell
    return [effect.model_copy(update={"part_of": merged.get(effect.cell)}) for effect in effects]


def _shared_change(effect: CellEffect, first: CellEffect, scores: Scores) -> float:
    """The share, 0 … 1, of what is lost (or gained) in a cell that is lost in pairs of the other as well."""
    sign = 1 if effect.standing == "weakness" else -1
    own, others = (np.maximum(sign * scores.losses(scores.cells[each.cell]), 0) for each in (effect, first))
    return float(np.minimum(own, others).sum() / max(own.sum(), 1e-12))


def describe(cells: Mapping[Cell, Differences], seed: int) -> list[CellEffect]:
    """The effects of cells with 95 % intervals where there are at least 12 source images, and without tests.

    The lowest effect is first. For figures that the reader chooses after the tests were fixed.
    """
    effects = []
    for cell, differences in cells.items():
        effect = _untested_effect(cell, differences, max(1, sum(map(_is_large, cells.values()))))
        if _is_large(differences):
            own_seed = derive_seed(seed, cell.label, cell.factor, cell.value, cell.direction)
            interval = effect_interval(differences, LEVEL, own_seed)
            effect = effect.model_copy(update={"interval": interval, "standing": "nothing found"})
        effects.append(effect)
    return sorted(effects, key=strength)


def hypothesis_tests(cells: Mapping[Cell, Differences], seed: int) -> dict[Cell, HypothesisTest]:
    """The families of one model and method, in the order of the cells: those tested with at least 12 source images.

    Where the results decided how many images a cell gets (`left`), it is in the family with fewer too, and its p-values
    are 1: the results must not choose the family. `seed` belongs to the job, model and method; the seed of each test
    derives from it.
    """
    family = {cell: pairs for cell, pairs in cells.items() if pairs.left is not None or _is_large(pairs)}
    seeds = [derive_seed(seed, cell.label, cell.factor, cell.value, cell.direction) for cell in family]
    of_family = [*zip(family.values(), seeds, strict=True)]
    lost = np.array([_p_lost(pairs, BEYOND, own) for pairs, own in of_family])
    gained = np.array([_p_lost(replace(pairs, correct=-pairs.correct), BEYOND, own) for pairs, own in of_family])
    any_lost = np.array([_p_lost(pairs, 0.0, own) for pairs, own in of_family])
    q_lost, q_gained = false_discovery_control(lost), false_discovery_control(gained)
    open_cells, q_any_lost = q_lost > FALSE_DISCOVERY_RATE, np.full(len(family), np.nan)
    if open_cells.any():
        q_any_lost[open_cells] = false_discovery_control(any_lost[open_cells])
    return {
        cell: HypothesisTest(
            seeds[place],
            float(lost[place]),
            float(q_lost[place]),
            float(gained[place]),
            float(q_gained[place]),
            float(any_lost[place]) if open_cells[place] else None,
            float(q_any_lost[place]) if open_cells[place] else None,
        )
        for place, cell in enumerate(family)
    }


def _p_lost(differences: Differences, beyond: float, seed: int) -> float:
    return p_lost(differences, beyond, seed) if _is_large(differences) else 1.0


def _is_large(differences: Differences) -> bool:
    return len(differences.correct) >= LEAST_SOURCES


def _beyond_limit(differences: Differences, standing: Standing, level: float, seed: int) -> Interval:
    """The one-sided interval of a finding: everything beyond the limit nearer to 0.

    The test refutes an effect of 5 points at this level. So the limit lies beyond it, even if that of bets, which is on
    a grid of candidate means, is rounded to this side.
    """
    both = effect_interval(differences, 2 * level - 1, seed)
    if standing == "weakness":
        return Interval(low=-1.0, high=min(both.high, -BEYOND), level=level, kind=both.kind)
    return Interval(low=max(both.low, BEYOND), high=1.0, level=level, kind=both.kind)


def _breakdown(selected: Interval | None) -> float | None:
    return None if selected is None else breakdown_point(max(-selected.high, selected.low))


def _sign(standing: Standing) -> Literal[-1, 1]:
    return 1 if standing == "improvement" else -1


def _reviews_needed(differences: Differences, level: float | None, standing: Standing, seed: int) -> int | None:
    return None if level is None else reviews_needed(differences, level, _sign(standing), seed)


def _among_valid(
    cell: Cell,
    differences: Differences,
    level: float | None,
    checked: Checked | Reviewed | None,
    seed: int,
    standing: Standing,
) -> ValidEffect | None:
    """The effect among valid edits; one-sided at the `level` of a finding.

    A finding whose own images were reviewed depends on these alone. An improvement stands only if people looked at its
    own images: the errors of the checks are those of edits, and an arm that lost the class looks like an improvement by
    a valid edit.
    """
    own = None if checked is None else checked.own_sample(cell)
    if own is not None and level is not None:
        of_own = effect_of_changed(differences, own, level, _sign(standing), seed)
        if of_own is not None:
            return of_own
    shares = None if checked is None else checked.shares(cell, seed)
    if checked is None or shares is None:
        return None
    pool, source = checked.pool(cell), checked.source
    effect = effect_among_valid(differences, level or LEVEL, shares, seed, source, pool, one_sided=level is not None)
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
        images_needed=images_needed(differences, BEYOND, least, family),
    )


STANDINGS: tuple[Standing, ...] = ("weakness", "improvement", "suspected weakness", "nothing found", "too few images")


def strength(effect: CellEffect) -> tuple[object, ...]:
    """Sort key: standing; for findings the interval's bound nearest to 0, strongest first; effect; name of the cell."""
    cell = effect.cell
    bound = 0.0
    if effect.selected_interval is not None:
        bound = max(-effect.selected_interval.high, effect.selected_interval.low)
    name = (cell.label, cell.factor, cell.value, cell.direction)
    return (STANDINGS.index(effect.standing), -bound, effect.delta_accuracy, *name)
