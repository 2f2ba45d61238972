"""Tests and intervals for means of per-source differences and for rates, valid at small sample sizes.

`research/simulate.py` simulates their coverage and error rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm, t

from gateway.analysis.betting import anytime_interval, anytime_p_lost, betting_interval, betting_p, images_to_refute
from gateway.analysis.effects import Differences, Floats, Integers
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE
from gateway.analysis.matched_pairs import PairCounts, exact_interval, least_loss, p_value
from shared.schemas.effects import Interval, MeanOverlap, Rate

LEVEL = 0.95
RESAMPLES = 4_000
BOOTSTRAP_FROM = 30  # source images
EACH_SIDE = 10  # source images with a large gain, and as many with a large loss
LARGE = 0.5  # a gain or loss from which the bootstrap may be used: half of the largest possible
BOOTSTRAP_UP_TO = 0.995  # level; at higher levels fewer than 10 resamples lie in a tail
FEW_EVENTS = 3  # hits or misses; the normal approximation of Wilson's interval fails up to here
_DIGITS = 12  # decimal digits of a difference, so that rounding errors do not split equal values

# The mean of a model's scores on n images, given their sources and a seed, with its interval.
Level = Callable[[Floats | NDArray[np.bool_], Integers, int], Rate | MeanOverlap]


def clustered_rate(hits: NDArray[np.bool_], source: Integers) -> Rate:
    """A rate over images, with a 95 % interval. Images of one source image are not independent.

    Wilson's interval with the effective number of trials, and the t quantile of the number of sources − 1 (Korn &
    Graubard 1998). The design effect is linearised (Rao & Scott 1992). Two pseudo-sources, one with all hits and one
    with none, keep it defined for few hits (as Agresti & Coull 1998 do for the rate itself). With a single source the
    interval is 0 to 1.
    """
    count, n, sources = int(hits.sum()), len(hits), len(np.unique(source))
    if sources < 2:
        return Rate(count=count, n=n, value=count / n if n else None, low=0.0, high=1.0, sources=sources)
    low, high = score_interval(count / n, effective_trials(hits, source), float(t.ppf((1 + LEVEL) / 2, sources - 1)))
    return Rate(count=count, n=n, value=count / n, low=low, high=high, sources=sources)


def accuracy(scores: Floats | NDArray[np.bool_], source: Integers, seed: int) -> Rate:
    """A model's accuracy on n images, from scores of 0 or 1."""
    return clustered_rate(scores.astype(bool), source)


def mean_overlap(scores: Floats | NDArray[np.bool_], source: Integers, seed: int) -> MeanOverlap:
    """A model's mean IoU on n images, from its scores in 0 … 1."""
    _, index, counts = np.unique(source, return_inverse=True, return_counts=True)
    means = np.bincount(index, scores) / counts
    if len(means) < 2:
        value = float(means[0]) if len(means) else None
        return MeanOverlap(value=value, low=0.0, high=1.0, n=len(scores), sources=len(means))
    interval = mean_interval(means, LEVEL, seed)
    return MeanOverlap(
        value=float(means.mean()), low=max(0.0, interval.low), high=interval.high, n=len(scores), sources=len(means)
    )


def effective_trials(hits: NDArray[np.bool_], source: Integers) -> float:
    """The effective number of independent trials, given clustering by source image: n / design effect."""
    _, index, sizes = np.unique(source, return_inverse=True, return_counts=True)
    n, sources = len(hits), len(sizes)
    size = n / sources
    rate = (int(hits.sum()) + size) / (n + 2 * size)
    residuals = np.bincount(index, hits, sources) - rate * sizes
    squares = float(residuals @ residuals) + size**2 * (rate**2 + (1 - rate) ** 2)
    variance = squares / (n + 2 * size) ** 2 * (sources + 2) / (sources + 1)
    return min(float(n), rate * (1 - rate) / variance * sources / (sources + 2))


def score_interval(p: float, n: float, quantile: float) -> tuple[float, float]:
    """Wilson's interval for a rate p of n trials, with Poisson bounds for few hits or misses. n may be fractional."""
    scale = 1 + quantile**2 / n
    centre = (p + quantile**2 / (2 * n)) / scale
    half = quantile / scale * math.sqrt(p * (1 - p) / n + quantile**2 / (4 * n * n))
    return _near_zero(p * n, n, centre - half), 1 - _near_zero((1 - p) * n, n, 1 - centre - half)


def _near_zero(hits: float, n: float, low: float) -> float:
    if hits == 0:
        return 0.0
    rare = hits <= FEW_EVENTS and hits < n / 2
    return min(low, float(chi2.ppf(1 - LEVEL, 2 * hits)) / (2 * n)) if rare else low


def p_lost(differences: Differences, beyond: float, seed: int) -> float:
    """p-value of the hypothesis that at most `beyond` (0 … 1) is lost: that their mean is at least −`beyond`.

    The exact test of matched pairs where it applies, else half of `p_beyond` on the side of the losses.
    """
    values = differences.correct
    if differences.paired:
        return p_value(PairCounts.of(values), beyond)
    if differences.left is not None:
        return anytime_p_lost(values, beyond, differences.left)
    two_sided = p_beyond(values, beyond, seed) if values.mean() < 0 else 1.0
    return two_sided / 2 if two_sided < 1 else 1.0


def p_beyond(differences: Floats, beyond: float, seed: int) -> float:
    """p-value of the hypothesis that the mean of n independent differences lies within ±`beyond` (0 … 1).

    It inverts the interval: the smallest α for which the interval at level 1 − α, and every narrower one, lies on one
    side of ±`beyond`. It does not assume symmetry: when several edits share a null arm, differences are skewed even
    without an effect.
    """
    if not is_mixed(differences):
        return betting_p(differences, beyond)
    ratios, error = _studentize(differences, seed)
    distance = (abs(float(differences.mean())) - beyond) / error if error else 0.0
    if distance <= 0:
        return 1.0
    exceeds = (ratios >= distance) if differences.mean() > 0 else (-ratios >= distance)
    by_bootstrap = min(1.0, 2 * (int(exceeds.sum()) + 1) / (RESAMPLES + 1))
    smallest = 1 - BOOTSTRAP_UP_TO
    return by_bootstrap if by_bootstrap > smallest else min(smallest, betting_p(differences, beyond))


def is_mixed(differences: Floats) -> bool:
    """Whether the bootstrap applies: at least 30 differences, with at least 10 of +0.5 or more and 10 of −0.5 or less.

    The bootstrap knows only values that it has seen. Where small differences are frequent (IoU, means over the frames
    of a sequence), a rare large one may be missing in the sample and still decide the mean. With large ones on both
    sides the standard error is of the size of what may be missing.
    """
    gains, losses = int((differences >= LARGE).sum()), int((differences <= -LARGE).sum())
    return len(differences) >= BOOTSTRAP_FROM and min(gains, losses) >= EACH_SIDE


def effect_interval(differences: Differences, level: float, seed: int) -> Interval:
    """Two-sided interval of a cell's effect; its upper end at level 1 − 2α is the limit of `p_lost` at α."""
    if not differences.paired:
        return mean_interval(differences.correct, level, seed, differences.left)
    low, high = exact_interval(PairCounts.of(differences.correct), level, BEYOND)
    return Interval(low=low, high=high, level=level, kind="exact")


def loss_limit(differences: Differences, level: float, seed: int) -> float:
    """The one-sided upper limit of a cell's loss at `level`, 0 … 1."""
    if differences.paired:
        return max(0.0, -least_loss(PairCounts.of(differences.correct).mirrored, 1 - level, BEYOND))
    return max(0.0, -mean_interval(differences.correct, 2 * level - 1, seed, differences.left).low)


def mean_interval(differences: Floats, level: float, seed: int, left: Floats | None = None) -> Interval:
    """Interval of the mean of n independent differences in −1 … 1.

    Bootstrap-t if `is_mixed` holds and the level is at most 0.995. Otherwise the betting interval, which covers at any
    n and level and for any distribution on −1 … 1. `left` is as in `Differences`: with it the interval covers for any
    number of differences, even one chosen from the data.
    """
    if left is not None:
        low, high = anytime_interval(differences, level, left)
        return Interval(low=low, high=high, level=level, kind="betting")
    if is_mixed(differences) and level <= BOOTSTRAP_UP_TO:
        low, high = bootstrap_t(differences, level, seed)
        return Interval(low=low, high=high, level=level, kind="bootstrap-t")
    low, high = betting_interval(differences, level)
    return Interval(low=low, high=high, level=level, kind="betting")


def bootstrap_t(differences: Floats, level: float, seed: int) -> tuple[float, float]:
    """Studentized bootstrap interval of the mean (Efron & Tibshirani 1993, 12.5), clipped to −1 … 1."""
    mean = float(differences.mean())
    ratios, error = _studentize(differences, seed)
    tail = (1 - level) / 2
    lower, upper = np.quantile(ratios, [tail, 1 - tail], method="closest_observation")
    return max(-1.0, mean - float(upper) * error), min(1.0, mean - float(lower) * error)


def _studentize(differences: Floats, seed: int) -> tuple[Floats, float]:
    """(mean − overall mean) / standard error of each of 4,000 resamples; the standard error of the overall mean."""
    n, mean = len(differences), float(differences.mean())
    values, counts = np.unique(differences.round(_DIGITS), return_counts=True)
    resamples = np.random.default_rng(seed).multinomial(n, counts / n, RESAMPLES)  # counts of each value
    means = resamples @ values / n
    variances = np.maximum(resamples @ values**2 / n - means**2, 0.0) * n / (n - 1)
    return (means - mean) / np.maximum(np.sqrt(variances / n), 1e-12), float(differences.std(ddof=1)) / math.sqrt(n)


def images_needed(differences: Differences, beyond: float, least: int, family: int) -> int | None:
    """About how many source images establish an effect of this size beyond ±`beyond` (0 … 1), in a family of tests.

    The one-sided level is 5 % / `family` (Bonferroni): enough if no other cell is a finding. At least `least`, as many
    as bets on such differences take where the test bets, and as many as the normal approximation takes: two
    pseudo-observations, −1 and +1, widen its spread, because few sources may agree by chance. None if the observed
    effect lies within ±`beyond`: no number of images would establish it.
    """
    values, alpha = differences.correct, FALSE_DISCOVERY_RATE / family
    distance = abs(float(values.mean())) - beyond
    if distance <= 0:
        return None
    spread = float(np.concatenate([values, [-1, 1]]).std())
    by_spread = math.ceil((float(norm.isf(alpha)) * spread / distance) ** 2)
    by_bets = 0 if differences.paired else images_to_refute(values, beyond, 2 * alpha)
    return max(least, by_spread, by_bets)
