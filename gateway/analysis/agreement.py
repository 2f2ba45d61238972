"""Raters: who answers control items correctly, how well they agree, and what they agree on. Arrays in, figures out."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import krippendorff
import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import LEVEL, mean_interval
from gateway.analysis.effects import Floats, Integers
from shared.schemas.effects import Estimate

RESAMPLES = 500
FEWEST_DRAWS = 0.9  # share of resamples in which α must be defined
FEWEST_JUDGES = 3  # raters of a control item who can drop it
FEWEST_GROUPS = 5

Scale = Literal["nominal", "ordinal"]


@dataclass(frozen=True, slots=True)
class ControlScores:
    """Per rater the number of `correct` control items and of those that count (`n`); which items are `dropped`."""

    correct: Integers
    n: Integers
    dropped: NDArray[np.bool_]


def score_controls(correct: Floats, uncertain: NDArray[np.bool_]) -> ControlScores:
    """The control items of each rater, from an array raters × control items: 1 correct, 0 wrong, NaN not rated.

    `uncertain` items (null arms, which may have lost their object) are dropped if most of at least three raters who got
    no certain item wrong answer them "wrongly".
    """
    rated = ~np.isnan(correct)
    hits = np.where(rated, correct, 0.0)
    reliable = ~(rated & (hits == 0) & ~uncertain).any(axis=1)
    judges = rated[reliable].sum(axis=0)
    dropped = uncertain & (judges >= FEWEST_JUDGES) & (2 * hits[reliable].sum(axis=0) < judges)
    kept = ~dropped
    return ControlScores(
        correct=hits[:, kept].sum(axis=1).astype(np.int64), n=rated[:, kept].sum(axis=1), dropped=dropped
    )


def alpha(counts: Integers, scale: Scale) -> float | None:
    """Krippendorff's α from an array items × values of how many raters gave the value; None if it is undefined.

    Items with fewer than two answers are left out. It is undefined if all answers are equal.
    """
    pairable = counts[counts.sum(axis=1) >= 2]
    if len(pairable) == 0 or np.count_nonzero(pairable.sum(axis=0)) < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # values that nobody gave
        value = krippendorff.alpha(
            value_counts=pairable, value_domain=list(range(counts.shape[1])), level_of_measurement=scale
        )
    return float(value) if math.isfinite(value) else None


def alpha_interval(counts: Integers, scale: Scale, group: Integers, seed: int) -> tuple[float, float] | None:
    """The 95 % percentile bootstrap interval of α. Resamples groups: items of one source image stay together.

    None with fewer than five groups, or if α is undefined in a tenth of the resamples.
    """
    names, index = np.unique(group, return_inverse=True)
    if len(names) < FEWEST_GROUPS:
        return None
    members = [np.flatnonzero(index == number) for number in range(len(names))]
    random = np.random.default_rng(seed)
    draws = []
    for _ in range(RESAMPLES):
        rows = np.concatenate([members[number] for number in random.integers(len(names), size=len(names))])
        if (value := alpha(counts[rows], scale)) is not None:
            draws.append(value)
    if len(draws) < FEWEST_DRAWS * RESAMPLES:
        return None
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def consensus(yes: Integers, no: Integers, answers: Integers, share: float) -> Integers:
    """What the raters of each item agree on: 1 yes, −1 no, 0 neither. `share` of all its `answers` must be equal."""
    needed = share * answers - 1e-9  # 0.8 of 5 is 4
    return np.where((answers > 0) & (yes >= needed), 1, np.where((answers > 0) & (no >= needed), -1, 0))


def mean_rating(means: Floats, group: Integers, seed: int) -> Estimate | None:
    """The mean of items' mean ratings (1 to 5) with its 95 % interval; groups weigh equally. None for one group."""
    _, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        return None
    of_groups = np.bincount(index, means) / sizes
    interval = mean_interval((of_groups - 3) / 2, LEVEL, seed)
    return Estimate(value=float(of_groups.mean()), low=3 + 2 * interval.low, high=3 + 2 * interval.high)
