"""Bounds of a cell's effect if the refused edits that may be valid had been counted.

Which refused edits are valid is not known, and at most a share of them is. The model's outcome on a refused image is
known most often; otherwise it may be anything in −1 … 1. The bounds are the smallest and the largest effect over all
choices of valid ones: worst-case bounds (Manski 1990) under contaminated sampling (Horowitz & Manski 1995). Accepted
edits stay as they are; `validity` bounds the effect of invalid ones among them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import LEVEL, mean_interval
from gateway.analysis.effects import Differences, Floats, Integers
from gateway.analysis.limits import LEAST_SOURCES
from shared.schemas.estimates import Bounds
from shared.schemas.results import Interval


@dataclass(frozen=True, slots=True)
class Refused:
    """The m rendered edits of a cell whose pairs do not count.

    `group`: the group of each one's source image. `difference`: score on its image − score on its reference arm, in
    −1 … 1; NaN where one of the two is not known.
    """

    group: Integers
    difference: Floats


def effect_bounds(
    counted: Differences, refused: Refused, share: float, source: Literal["none", "checks", "reviews"], seed: int
) -> Bounds:
    """The bounds of a cell's effect. `share` (0 … 1): the largest share of its refused edits that may be valid.

    Groups weigh equally, and so do the edits of a group. `interval` (None under 12 groups) covers the effect at 95 %,
    whichever are valid: the lower end belongs to the lower bound, the upper end to the upper one.
    """
    most = math.ceil(share * len(refused.group) - 1e-9)
    low = _lowest(counted.group, counted.correct, _sizes(counted), refused, most)
    mirrored = Refused(refused.group, -refused.difference)
    high = -_lowest(counted.group, -counted.correct, _sizes(counted), mirrored, most)
    return Bounds(
        low=float(low.mean()),
        high=float(high.mean()),
        refused=len(refused.group),
        share=share,
        source=source,
        interval=_interval(low, high, seed) if len(counted.correct) >= LEAST_SOURCES else None,
    )


def _interval(low: Floats, high: Floats, seed: int) -> Interval:
    lower, upper = (mean_interval(np.clip(values, -1, 1), LEVEL, seed) for values in (low, high))
    kind = lower.kind if lower.kind == upper.kind else "betting"
    return Interval(low=lower.low, high=upper.high, level=LEVEL, kind=kind)


def _sizes(counted: Differences) -> Integers:
    """The number of counterfactuals of each group."""
    if counted.sizes is not None:
        return counted.sizes
    return np.full(len(counted.correct), max(1, round(counted.counterfactuals / len(counted.correct))))


def _lowest(group: Integers, means: Floats, sizes: Integers, refused: Refused, most: int) -> Floats:
    """The means of groups if those refused edits are valid, at most `most`, that give the lowest mean over groups.

    Within a group the lowest differences come first, and each gains less than the one before it, so the best choice of
    k edits in groups that have counted ones is the k largest gains. A group without any enters with its lowest
    difference, the lowest groups first; every number of such groups is tried. The result is exact.
    """
    values = np.where(np.isnan(refused.difference), -1.0, refused.difference)
    order = np.lexsort((values, refused.group))
    groups, values = refused.group[order], values[order]
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
