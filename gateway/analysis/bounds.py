"""Bounds of a cell's effect if the refused pairs that may be valid had been counted.

A pair is refused because its edit is, or its arm alone (it is lost). Which ones are valid is not known, and at most a
share of each kind is. What the model does on a refused edit is known most often. A refused arm may be invalid, so what
the model would do on a valid one is not known, and the difference is a range. The bounds are the smallest and the
largest effect over all choices of valid pairs and all differences in their ranges: worst-case bounds (Manski 1990)
under contaminated sampling (Horowitz & Manski 1995). Counted pairs stay as they are; `validity` bounds the effect
of invalid ones among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack, vstack

from gateway.analysis.certainty import LEVEL, mean_interval
from gateway.analysis.effects import Differences, Floats, Integers
from gateway.analysis.limits import LEAST_SOURCES
from shared.schemas.effects import Bounds, Interval

MOST_CHOICES = 10_000  # above, refused edits and lost pairs share one budget, which is wider and takes no programme


@dataclass(frozen=True, slots=True)
class Refused:
    """The m rendered edits of a cell whose pairs do not count.

    `group`: the group of each one's source image. `low`, `high`: the smallest and the largest difference, score on its
    image − score on a valid arm (`possible_difference`). `lost`: whether the edit is accepted and only its arm is
    refused.
    """

    group: Integers
    low: Floats
    high: Floats
    lost: NDArray[np.bool_]

    def only(self, chosen: NDArray[np.bool_]) -> Refused:
        """The chosen ones."""
        return Refused(self.group[chosen], self.low[chosen], self.high[chosen], self.lost[chosen])


def possible_difference(score: float | None, reference: float | None) -> tuple[float, float]:
    """The smallest and the largest difference, −1 … 1, of two scores in 0 … 1; None for a score that is not known."""
    low = (0.0 if score is None else score) - (1.0 if reference is None else reference)
    high = (1.0 if score is None else score) - (0.0 if reference is None else reference)
    return low, high


class MostValid(NamedTuple):
    """The largest shares (0 … 1) of refused edits, and of lost pairs, that may be valid; `source`: of the first."""

    refused: float
    lost: float
    source: Literal["none", "checks", "reviews"]


def effect_bounds(counted: Differences, refused: Refused, most_valid: MostValid, seed: int) -> Bounds:
    """The bounds of a cell's effect.

    Groups weigh equally, and so do the edits of a group. `interval` covers the effect at 95 %, whichever are valid: the
    lower end belongs to the lower bound, the upper end to the upper one. None under 12 groups, or if their number was
    not fixed beforehand.
    """
    counted = _by_group(counted)
    lost = int(refused.lost.sum())
    numbers = len(refused.lost) - lost, lost
    most = [math.ceil(share * n - 1e-9) for share, n in zip(most_valid[:2], numbers, strict=True)]
    low = _lowest(counted.group, counted.correct, _sizes(counted), refused, most)
    mirrored = replace(refused, low=-refused.high, high=-refused.low)
    high = -_lowest(counted.group, -counted.correct, _sizes(counted), mirrored, most)
    return Bounds(
        low=float(low.mean()),
        high=float(high.mean()),
        refused=numbers[0],
        share=most_valid.refused,
        source=most_valid.source,
        lost=lost,
        lost_share=most_valid.lost,
        interval=_interval(low, high, seed) if counted.left is None and len(counted.correct) >= LEAST_SOURCES else None,
    )


def _by_group(counted: Differences) -> Differences:
    """The differences in the order of `group`. Those of adaptive jobs are in the order of their images."""
    order = np.argsort(counted.group, kind="stable")
    sizes = None if counted.sizes is None else counted.sizes[order]
    return replace(counted, group=counted.group[order], correct=counted.correct[order], sizes=sizes)


def _interval(low: Floats, high: Floats, seed: int) -> Interval:
    lower, upper = (mean_interval(np.clip(values, -1, 1), LEVEL, seed) for values in (low, high))
    kind = lower.kind if lower.kind == upper.kind else "betting"
    return Interval(low=lower.low, high=upper.high, level=LEVEL, kind=kind)


def _sizes(counted: Differences) -> Integers:
    """The number of counterfactuals of each group."""
    if counted.sizes is not None:
        return counted.sizes
    return np.full(len(counted.correct), max(1, round(counted.counterfactuals / len(counted.correct))))


def _lowest(group: Integers, means: Floats, sizes: Integers, refused: Refused, most: Sequence[int]) -> Floats:
    """The means of groups if those refused pairs are valid that give the lowest mean over groups.

    `most`: how many refused edits, and how many lost pairs, may be valid. Pairs that lower no mean are left out.
    """
    place = np.minimum(np.searchsorted(group, refused.group), len(group) - 1)
    lowers = (group[place] != refused.group) | (refused.low < means[place])
    left = refused.only(lowers)
    if not len(left.lost):
        return means
    numbers = np.sum(~left.lost), np.sum(left.lost)
    budgets = [min(limit, int(number)) for limit, number in zip(most, numbers, strict=True)]
    if not all(budgets) or sum(budgets) == len(left.lost) or _count_choices(left) > MOST_CHOICES:
        possible = np.where(left.lost, budgets[1], budgets[0]) > 0
        left = left.only(possible)
        return _lowest_of_one_kind(group, means, sizes, left, sum(budgets))
    return _lowest_of_two_kinds(means, _choices(group, means, sizes, left, budgets), budgets)


def _lowest_of_one_kind(group: Integers, means: Floats, sizes: Integers, refused: Refused, most: int) -> Floats:
    """The means of groups with the best choice of at most `most` refused pairs of any kind.

    Within a group the lowest differences come first, and each gains less than the one before it, so the best choice of
    k pairs in groups that have counted ones is the k largest gains. A group without any enters with its lowest
    difference, the lowest groups first; every number of such groups is tried. The result is exact.
    """
    order = np.lexsort((refused.low, refused.group))
    groups, values = refused.group[order], refused.low[order]
    place = np.minimum(np.searchsorted(group, groups), len(group) - 1)
    counts = group[place] == groups
    gains = _gains(place[counts], values[counts], means, sizes)
    ranked = np.argsort(-gains, kind="stable")
    ranked = ranked[gains[ranked] > 1e-12]
    saved = np.concatenate([[0.0], np.cumsum(gains[ranked])])
    alone = np.sort(values[~counts][_first_of_each(groups[~counts])])[:most]
    added = np.arange(len(alone) + 1)
    sums = means.sum() - saved[np.minimum(most - added, len(ranked))] + np.concatenate([[0.0], np.cumsum(alone)])
    best = int(np.argmin(sums / (len(means) + added)))
    chosen = ranked[: most - best]
    lowered = means - np.bincount(place[counts][chosen], gains[chosen], len(means))
    return np.concatenate([lowered, alone[:best]])


def _gains(place: Integers, values: Floats, means: Floats, sizes: Integers) -> Floats:
    """By how much each refused edit lowers the mean of its group, after those before it. Rows are sorted by `place`."""
    first = np.flatnonzero(_first_of_each(place))
    counts = np.diff(np.append(first, len(place)))
    rank = np.arange(len(place)) - np.repeat(first, counts)
    sums = np.cumsum(values)
    before = sums - values - np.repeat((sums - values)[first], counts)
    total = sizes[place] * means[place] + before
    size = sizes[place] + rank
    return np.asarray(total / size - (total + values) / (size + 1))


def _first_of_each(names: Integers) -> NDArray[np.bool_]:
    """Whether a row is the first of its name, in rows sorted by name."""
    return np.asarray(np.diff(names, prepend=names[:1] - 1) != 0)


class _Choices(NamedTuple):
    """How many refused edits and lost pairs a group may count, and its mean then. `row`: groups, counted ones first."""

    row: Integers
    refused: Integers
    lost: Integers
    mean: Floats


def _count_choices(refused: Refused) -> int:
    """How many choices of a number of each kind all groups have together."""
    groups = np.unique(refused.group, return_inverse=True)[1]
    numbers = [np.bincount(groups[kind], minlength=groups.max() + 1) for kind in (~refused.lost, refused.lost)]
    return int(((1 + numbers[0]) * (1 + numbers[1])).sum())


def _choices(group: Integers, means: Floats, sizes: Integers, refused: Refused, most: Sequence[int]) -> _Choices:
    """All choices of pairs that lower a group's mean; a group without counted pairs takes its lowest of either kind."""
    names = np.concatenate([group, np.setdiff1d(refused.group, group)])
    order = np.lexsort((refused.low, refused.group))
    sorted_groups = refused.group[order]
    first, end = (np.searchsorted(sorted_groups, names, side) for side in ("left", "right"))
    columns = []
    for row in range(len(names)):
        of_row = order[first[row] : end[row]]
        size, mean = (sizes[row], means[row]) if row < len(means) else (0, 0.0)
        sums = [
            np.cumsum(np.concatenate([[0.0], refused.low[of_row[refused.lost[of_row] == lost]]]))[: limit + 1]
            for lost, limit in zip((False, True), most, strict=True)
        ]
        edits, lost_pairs = np.indices([len(kind) for kind in sums]).reshape(2, -1)
        if not size:
            edits, lost_pairs = (numbers[edits + lost_pairs == 1] for numbers in (edits, lost_pairs))
        mean_after = (size * mean + sums[0][edits] + sums[1][lost_pairs]) / (size + edits + lost_pairs)
        columns.append((np.full(len(edits), row), edits, lost_pairs, mean_after))
    return _Choices(*map(np.concatenate, zip(*columns, strict=True)))


def _lowest_of_two_kinds(means: Floats, choices: _Choices, most: Sequence[int]) -> Floats:
    """The means of groups, shifted so that their mean is a lower limit of the mean under both budgets.

    The choice of each group may be a mixture (a linear-fractional programme: Charnes & Cooper 1962), so that the limit
    is below the lowest mean by at most what three groups contribute.
    """
    alone = choices.row >= len(means)
    n_rows = int(choices.row.max()) + 1
    column = np.arange(len(alone))
    memberships = csr_array((np.ones(len(alone)), (choices.row, column)), shape=(n_rows, len(alone)))
    each = csr_array(np.full((n_rows, 1), -1.0))
    weights = hstack(
        [memberships, each], format="csr"
    )  # Σ of a group's choices − scale: 0, or below if it may be left out
    budgets = np.array([[*choices.refused, -most[0]], [*choices.lost, -most[1]]], float)
    total = np.array([[*alone, len(means)]], float)
    solution = linprog(
        np.append(choices.mean, 0.0),
        A_ub=vstack([weights[len(means) :], csr_array(budgets)]),
        b_ub=np.zeros(n_rows - len(means) + 2),
        A_eq=vstack([weights[: len(means)], csr_array(total)]),
        b_eq=np.append(np.zeros(len(means)), 1.0),
    )
    shares = solution.x[:-1] / solution.x[-1]
    counted = np.bincount(choices.row[~alone], (shares * choices.mean)[~alone], len(means))
    lowered = np.concatenate([counted, choices.mean[alone & (shares > 0.5)]])
    return np.asarray(lowered + (solution.fun - lowered.mean()))
