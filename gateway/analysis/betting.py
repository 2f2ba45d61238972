"""Intervals and p-values of a mean by betting against candidate means; valid at any n, for any distribution on −1 … 1.

Wealth of a bet against a true mean is a non-negative martingale, so it reaches 1/α with probability at most α
(Ville): Waudby-Smith & Ramdas 2024 (arXiv 2010.09686). Stakes aim at 1/α in the rounds that remain: STaR bets,
Voráček & Orabona 2025 (arXiv 2505.22422).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.effects import Floats

_MEANS = 1_001  # candidate means in 0 … 1
_LEVELS = np.geomspace(1.0, 1e-9, 541)  # p-values in steps of 4 %


def betting_interval(differences: Floats, level: float, seed: int) -> tuple[float, float]:
    """The candidate means that no bet refutes at `level`, from n differences in a random order (`seed`)."""
    unit = _unit(differences, seed)
    low = _largest_refuted(unit, (1 - level) / 2)
    high = 1 - _largest_refuted(1 - unit, (1 - level) / 2)
    return 2 * low - 1, 2 * high - 1


def betting_p(differences: Floats, beyond: float, seed: int) -> float:
    """p-value of a mean within ±`beyond` (0 … 1): the smallest α at which, and at every larger level, bets refute it.

    P(p ≤ α) ≤ P(refuted at α) ≤ α, and the interval at level 1 − p lies beyond ±`beyond`. The grid is 1 … 1e-9.
    """
    return _p_beyond(_unit(differences, seed), beyond)


def _p_beyond(unit: Floats, beyond: float, horizon: int | None = None) -> float:
    means = np.full(len(_LEVELS), (1 + beyond) / 2)
    rejected = refuted(unit, means, _LEVELS / 2, horizon) | refuted(1 - unit, means, _LEVELS / 2, horizon)
    not_rejected = np.flatnonzero(~rejected)
    count = int(not_rejected[0]) if len(not_rejected) else len(_LEVELS)
    return 1.0 if count == 0 else float(_LEVELS[count - 1])


def anytime_interval(differences: Floats, level: float, horizon: int) -> tuple[float, float]:
    """As `betting_interval`, from differences in the order of their rounds; valid at any stopping time.

    `horizon`: the number of differences that the bets were planned for, fixed before the first one was seen.
    """
    unit = (np.asarray(differences) + 1) / 2
    low = _largest_refuted(unit, (1 - level) / 2, horizon)
    high = 1 - _largest_refuted(1 - unit, (1 - level) / 2, horizon)
    return 2 * low - 1, 2 * high - 1


def anytime_p(differences: Floats, beyond: float, horizon: int) -> float:
    """As `betting_p`, from differences in the order of their rounds; valid at any stopping time."""
    return _p_beyond((np.asarray(differences) + 1) / 2, beyond, horizon)


def least_images(effect: float, beyond: float, alpha: float) -> int:
    """The fewest images from which any valid test can refute a mean within ±`beyond` if each differs by `effect`.

    `effect` in −1 … 1, larger than `beyond` in size; two-sided at `alpha`. With fewer, the same differences also come
    from a mean of ±`beyond`, if a rare image gains (loses) everything: P(no such image among them) > α / 2.
    """
    return math.ceil(math.log(2 / alpha) / math.log1p((abs(effect) - beyond) / (1 + beyond)))


def refuted(unit: Floats, means: Floats, alpha: Floats | float, horizon: int | None = None) -> NDArray[np.bool_]:
    """Whether a bet on higher values refutes each candidate mean at `alpha`.

    `unit`: rounds × sequences, values in 0 … 1. Each round broadcasts with `means` and `alpha`: one sequence against
    many candidates, or many sequences against one candidate. `horizon`: the number of rounds that stakes aim at (None:
    all of them). A candidate that is refuted stays refuted whatever follows, because then nothing is staked.
    """
    rounds = len(unit) if horizon is None else horizon
    target = np.log(1 / np.asarray(alpha))
    wealth = np.zeros(np.broadcast(unit[0], means, target).shape)  # natural logarithms
    squares = means * (1 - means) + wealth  # one pseudo-observation of the largest possible variance
    for index, value in enumerate(unit):
        missing = np.maximum(target - wealth, 0)
        stake = np.minimum(np.sqrt(2 * missing / max(1, rounds - index) * (index + 1) / squares), 1 / means)
        wealth += np.log(np.maximum(1 + stake * (value - means), 1e-300))
        squares += (value - means) ** 2
    return np.asarray(wealth >= target - 1e-12)


def _unit(differences: Floats, seed: int) -> Floats:
    return np.asarray((np.random.default_rng(seed).permutation(differences) + 1) / 2)


def _largest_refuted(unit: Floats, alpha: float, horizon: int | None = None) -> float:
    """The largest candidate mean on a grid of 0 … 1 that a bet on higher values refutes at `alpha`; 0 if none."""
    means = np.linspace(0, 1, _MEANS)[1:-1]
    return float(means[refuted(unit, means, alpha, horizon)].max(initial=0.0))
