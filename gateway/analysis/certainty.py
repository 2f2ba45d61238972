"""Tests and intervals for means of per-source differences and for rates, valid at small sample sizes.

`benchmarks/simulate.py` simulates their coverage and error rates.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, chi2, norm, t

from gateway.analysis.effects import Floats, Integers
from shared.schemas.results import Interval, MeanOverlap, Metric, Rate

LEVEL = 0.95
EXACT_UP_TO = 2**15  # sums of signed differences up to which the test is exact
MONTE_CARLO = 20_000
RESAMPLES = 4_000
BOOTSTRAP_FROM = 30  # source images
MIXED_FROM = 10  # sources that differ from the most common outcome
BOOTSTRAP_UP_TO = 0.995  # level: beyond it fewer than 10 resamples lie in a tail
FEW = 3  # hits, or misses: below, the normal approximation of Wilson's interval fails
_GRID = 1_001
_DIGITS = 12  # of differences: 1/3 is 1/3 however it came about


def clustered_rate(hits: NDArray[np.bool_], source: Integers) -> Rate:
    """A rate over images of which those of one source image are not independent, with a 95 % interval.

    Wilson's, with as many trials as the images are worth, and the t quantile of the number of sources − 1 (Korn &
    Graubard 1998). The design effect is linearised (Rao & Scott 1992) with one source more that has all hits and one
    that has none, so that it is there with few hits too (as Agresti & Coull 1998 do for the rate itself). For one
    source the interval is 0 to 1.
    """
    count, n, sources = int(hits.sum()), len(hits), len(np.unique(source))
    if sources < 2:
        return Rate(count=count, n=n, value=count / n if n else None, low=0.0, high=1.0, sources=sources)
    low, high = score_interval(count / n, trials_worth(hits, source), float(t.ppf((1 + LEVEL) / 2, sources - 1)))
    return Rate(count=count, n=n, value=count / n, low=low, high=high, sources=sources)


def clustered(scores: Floats | NDArray[np.bool_], source: Integers, metric: Metric, seed: int) -> Rate | MeanOverlap:
    """A model's accuracy or mean IoU on n images, from its scores in 0 … 1."""
    if metric == "accuracy":
        return clustered_rate(scores.astype(bool), source)
    _, place, counts = np.unique(source, return_inverse=True, return_counts=True)
    means = np.bincount(place, scores) / counts
    if len(means) < 2:
        value = float(means[0]) if len(means) else None
        return MeanOverlap(value=value, low=0.0, high=1.0, n=len(scores), sources=len(means))
    within = mean_interval(means, LEVEL, seed)
    return MeanOverlap(
        value=float(means.mean()), low=max(0.0, within.low), high=within.high, n=len(scores), sources=len(means)
    )


def trials_worth(hits: NDArray[np.bool_], source: Integers) -> float:
    """The effective number of independent trials, given clustering by source image: n / design effect."""
    _, place, sizes = np.unique(source, return_inverse=True, return_counts=True)
    n, sources = len(hits), len(sizes)
    size = n / sources
    assumed = (int(hits.sum()) + size) / (n + 2 * size)
    misfit = np.bincount(place, hits, sources) - assumed * sizes
    squares = float(misfit @ misfit) + size**2 * (assumed**2 + (1 - assumed) ** 2)
    variance = squares / (n + 2 * size) ** 2 * (sources + 2) / (sources + 1)
    return min(float(n), assumed * (1 - assumed) / variance * sources / (sources + 2))


def score_interval(p: float, n: float, quantile: float) -> tuple[float, float]:
    """Wilson's interval for a rate p of n trials (n need not be whole), with Poisson bounds for few hits or misses."""
    scale = 1 + quantile**2 / n
    centre = (p + quantile**2 / (2 * n)) / scale
    half = quantile / scale * math.sqrt(p * (1 - p) / n + quantile**2 / (4 * n * n))
    return _near_zero(p * n, n, centre - half), 1 - _near_zero((1 - p) * n, n, 1 - centre - half)


def _near_zero(hits: float, n: float, low: float) -> float:
    if hits == 0:
        return 0.0
    rare = hits <= FEW and hits < n / 2
    return min(low, float(chi2.ppf(1 - LEVEL, 2 * hits)) / (2 * n)) if rare else low


def sign_flip_p(differences: Floats, seed: int) -> float:
    """Two-sided p-value of the paired sign-flip permutation test of mean 0 (n source-level differences in −1 … 1).

    Zeros never matter, and equal differences are interchangeable. Exact over all sums where there are at most 2^15;
    otherwise 20,000 random sign patterns from `seed`, the observed one counted in (add-one: Phipson & Smyth 2010).
    """
    sizes, counts = np.unique(np.abs(differences.round(_DIGITS)), return_counts=True)
    sizes, counts = sizes[sizes > 0], counts[sizes > 0]
    observed = abs(float(differences.sum())) - 1e-9
    if np.prod(counts + 1.0) > EXACT_UP_TO:
        random = np.random.default_rng(seed)
        drawn = np.zeros(MONTE_CARLO)
        for size, count in zip(sizes, counts, strict=True):
            drawn += size * (count - 2.0 * random.binomial(count, 0.5, MONTE_CARLO))
        return (int((np.abs(drawn) >= observed).sum()) + 1) / (MONTE_CARLO + 1)
    sums, shares = np.zeros(1), np.ones(1)
    for size, count in zip(sizes, counts, strict=True):
        flipped = np.arange(count + 1)
        sums = np.add.outer(sums, size * (count - 2.0 * flipped)).ravel()
        shares = np.outer(shares, binom.pmf(flipped, count, 0.5)).ravel()
    return min(1.0, float(shares[np.abs(sums) >= observed].sum()))


def mean_interval(differences: Floats, level: float, seed: int) -> Interval:
    """Interval of the mean of n independent differences in −1 … 1.

    Bootstrap-t from 30 sources of which 10 differ from the most common outcome, up to level 0.995; otherwise the
    betting interval, which covers at any n and level and for any distribution on −1 … 1.
    """
    _, counts = np.unique(differences, return_counts=True)
    mixed = len(differences) >= BOOTSTRAP_FROM and len(differences) - counts.max() >= MIXED_FROM
    if mixed and level <= BOOTSTRAP_UP_TO:
        low, high = bootstrap_t(differences, level, seed)
        return Interval(low=low, high=high, level=level, kind="bootstrap-t")
    low, high = betting_interval(differences, level, seed)
    return Interval(low=low, high=high, level=level, kind="betting")


def bootstrap_t(differences: Floats, level: float, seed: int) -> tuple[float, float]:
    """Studentized bootstrap interval of the mean (Efron & Tibshirani 1993, 12.5), clipped to −1 … 1."""
    n, mean = len(differences), float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    values, counts = np.unique(differences.round(_DIGITS), return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(n, counts / n, RESAMPLES)  # how often each value is resampled
    means = drawn @ values / n
    variances = np.maximum(drawn @ values**2 / n - means**2, 0.0) * n / (n - 1)
    ratios = (means - mean) / np.maximum(np.sqrt(variances / n), 1e-12)
    tail = (1 - level) / 2
    lower, upper = np.quantile(ratios, [tail, 1 - tail], method="closest_observation")
    return max(-1.0, mean - float(upper) * error), min(1.0, mean - float(lower) * error)


def betting_interval(differences: Floats, level: float, seed: int) -> tuple[float, float]:
    """Interval of the mean by testing every candidate mean with a bet against it; valid at any n.

    Wealth of a bet against a true mean is a non-negative martingale, so it reaches 2/α with probability at most α/2
    (Ville), on either side: Waudby-Smith & Ramdas 2024 (arXiv 2010.09686). Stakes aim at 2/α in the rounds
    that remain: STaR bets, Voráček & Orabona 2025 (arXiv 2505.22422). Sources are taken in an order drawn from `seed`.
    """
    unit = (np.random.default_rng(seed).permutation(differences) + 1) / 2
    low = _largest_refuted(unit, (1 - level) / 2)
    high = 1 - _largest_refuted(1 - unit, (1 - level) / 2)
    return 2 * low - 1, 2 * high - 1


def _largest_refuted(unit: Floats, alpha: float) -> float:
    """The largest candidate mean on a grid of 0 … 1 that a bet on higher values refutes at `alpha`; 0 if none."""
    means = np.linspace(0, 1, _GRID)[1:-1]
    return float(means[refuted(unit, means, alpha)].max(initial=0.0))


def refuted(unit: Floats, means: Floats, alpha: float) -> NDArray[np.bool_]:
    """Whether a bet on higher values refutes each candidate mean at `alpha`.

    `unit`: rounds first, values in 0 … 1 that broadcast with `means`: one sequence against many candidates, or many
    sequences (columns) against one.
    """
    rounds = len(unit)
    wealth = np.zeros(np.broadcast(unit[0], means).shape)  # natural logarithms
    target = math.log(1 / alpha)
    squares = means * (1 - means) + wealth  # one pseudo-observation of the largest possible variance
    for played, value in enumerate(unit):
        missing = np.maximum(target - wealth, 0)
        stake = np.minimum(np.sqrt(2 * missing / (rounds - played) * (played + 1) / squares), 1 / means)
        wealth += np.log(np.maximum(1 + stake * (value - means), 1e-300))
        squares += (value - means) ** 2
    return np.asarray(wealth >= target - 1e-12)


def images_needed(differences: Floats, beyond: float, least: int) -> int | None:
    """The approximate number of source images that would show that an effect of this size is beyond `beyond` (0 … 1).

    From the normal approximation at 95 %, with one pseudo-observation of −1 and of +1 in the spread, since few sources
    may agree by chance. None if the observed effect is not beyond `beyond`: no number of images would show it.
    """
    distance = abs(float(differences.mean())) - beyond
    if distance <= 0:
        return None
    spread = float(np.concatenate([differences, [-1, 1]]).std())
    return max(least, math.ceil((float(norm.ppf((1 + LEVEL) / 2)) * spread / distance) ** 2))
