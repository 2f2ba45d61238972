"""How sure a mean of per-source differences is: a sign-flip test and intervals that hold at the sizes met here."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm

from gateway.analysis.effects import Floats
from shared.schemas.results import Interval, Rate

LEVEL = 0.95
EXACT_UP_TO = 15  # sources that differ: 2^15 sign patterns are enumerated
MONTE_CARLO = 20_000
RESAMPLES = 4_000
BOOTSTRAP_FROM = 30  # source images
MIXED_FROM = 10  # sources that differ from the most common outcome
BOOTSTRAP_UP_TO = 0.995  # level: beyond it fewer than 10 resamples lie in a tail
_GRID = 1_001
_CHUNK = 4_000_000


def wilson(count: int, n: int) -> Rate:
    """A rate with its Wilson score 95 % interval (0 to 1 for n = 0)."""
    if not 0 <= count <= n:
        raise ValueError(f"{count} of {n} is no rate")
    if n == 0:
        return Rate(count=0, n=0, value=None, low=0.0, high=1.0)
    z = float(norm.ppf((1 + LEVEL) / 2))
    p, scale = count / n, 1 + z * z / n
    centre = (p + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = 0.0 if count == 0 else centre - half
    high = 1.0 if count == n else centre + half
    return Rate(count=count, n=n, value=p, low=low, high=high)


def sign_flip_p(differences: Floats, seed: int) -> float:
    """Two-sided p-value of the paired sign-flip permutation test of mean 0 (n source-level differences in −1 … 1).

    Exact over all sign patterns of up to 15 non-zero differences (zeros never matter); otherwise 20,000 random
    patterns from `seed`, the observed one counted in (add-one: Phipson & Smyth 2010), so never 0.
    """
    values = np.abs(differences[differences != 0])
    observed = abs(float(differences.sum())) - 1e-9
    if len(values) <= EXACT_UP_TO:
        patterns = (np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1
        return float(np.mean(np.abs((1 - 2 * patterns) @ values) >= observed))
    random = np.random.default_rng(seed)
    extreme = 0
    for size in _chunks(MONTE_CARLO, len(values)):
        signs = random.integers(0, 2, (size, len(values)), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ values) >= observed).sum())
    return (extreme + 1) / (MONTE_CARLO + 1)


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
    random = np.random.default_rng(seed)
    ratios = []
    for size in _chunks(RESAMPLES, n):
        drawn = differences[random.integers(0, n, (size, n))]
        spread = np.maximum(drawn.std(axis=1, ddof=1) / math.sqrt(n), 1e-12)
        ratios.append((drawn.mean(axis=1) - mean) / spread)
    tail = (1 - level) / 2
    lower, upper = np.quantile(np.concatenate(ratios), [tail, 1 - tail], method="closest_observation")
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
    wealth = np.zeros(len(means))  # natural logarithms
    target = math.log(1 / alpha)
    squares = means * (1 - means)  # one pseudo-observation of the largest possible variance
    for played, value in enumerate(unit):
        missing = np.maximum(target - wealth, 0)
        stake = np.minimum(np.sqrt(2 * missing / (len(unit) - played) * (played + 1) / squares), 1 / means)
        wealth += np.log(np.maximum(1 + stake * (value - means), 1e-300))
        squares += (value - means) ** 2
    refuted = means[wealth >= target - 1e-12]
    return float(refuted.max(initial=0.0))


def images_needed(differences: Floats, beyond: float, least: int) -> int | None:
    """About how many source images would show that an effect of the size seen lies beyond `beyond` (0 … 1).

    From the normal approximation at 95 %, with one pseudo-observation of −1 and of +1 in the spread, since few sources
    may agree by chance. None when the effect seen is not beyond `beyond`: no number of images would settle it.
    """
    distance = abs(float(differences.mean())) - beyond
    if distance <= 0:
        return None
    spread = float(np.concatenate([differences, [-1, 1]]).std())
    return max(least, math.ceil((float(norm.ppf((1 + LEVEL) / 2)) * spread / distance) ** 2))


def _chunks(total: int, width: int) -> list[int]:
    """`total` rows of `width` values in pieces of bounded memory."""
    size = max(1, _CHUNK // max(width, 1))
    return [min(size, total - start) for start in range(0, total, size)]
