"""Intervals and p-values of a mean by betting against candidate means; valid at any n, for any distribution on −1 … 1.

Wealth of a bet against a true mean is a non-negative martingale, so it reaches 1/α with probability at most α
(Ville): Waudby-Smith & Ramdas 2024 (arXiv 2010.09686). Stakes aim at 1/α in the rounds that remain: STaR bets,
Voráček & Orabona 2025 (arXiv 2505.22422).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.effects import Floats, Integers

_MEANS = 1_001  # candidate means in 0 … 1
_LEVELS = np.geomspace(1.0, 1e-9, 541)  # p-values in steps of 4 %
_SHRINKAGE = 12  # imagined values without gain
_REACHED = 1e-12  # logarithm of wealth short of the target by rounding


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


def _p_beyond(unit: Floats, beyond: float, left: Floats | None = None) -> float:
    both = np.stack([unit, 1 - unit], axis=1)[:, :, np.newaxis]
    rejected = is_refuted(both, np.full(len(_LEVELS), (1 + beyond) / 2), _LEVELS / 2, left).any(axis=0)
    not_rejected = np.flatnonzero(~rejected)
    count = int(not_rejected[0]) if len(not_rejected) else len(_LEVELS)
    return 1.0 if count == 0 else float(_LEVELS[count - 1])


def anytime_interval(differences: Floats, level: float, left: Floats) -> tuple[float, float]:
    """As `betting_interval`, from differences in an order that was fixed before the first one was seen.

    `left`: how many differences were expected from each on, itself included, before it was seen. Valid for whatever
    number of differences, however that number is chosen: Ville's inequality bounds the wealth after each of them.
    """
    unit = (np.asarray(differences) + 1) / 2
    low = _largest_refuted(unit, (1 - level) / 2, left)
    high = 1 - _largest_refuted(1 - unit, (1 - level) / 2, left)
    return 2 * low - 1, 2 * high - 1


def anytime_p(differences: Floats, beyond: float, left: Floats) -> float:
    """As `betting_p`, from differences as `anytime_interval` takes them. More differences never raise it."""
    return _p_beyond((np.asarray(differences) + 1) / 2, beyond, left)


def expected_left(ranks: Integers, planned: int) -> Floats:
    """How many differences are expected from each on, itself included, when images are taken in a fixed order.

    `ranks` (from 0, ascending): the places in that order of the images that have a difference. `planned`: how many
    images may be taken. Each expectation uses the share of images before it that have one, and 7 of 10 imagined ones.
    """
    earlier = np.arange(len(ranks))
    return np.maximum(1.0, (planned - ranks) * (earlier + 7) / (ranks + 10))


def least_images(effect: float, beyond: float, alpha: float) -> int:
    """The fewest images from which any valid test can refute a mean within ±`beyond` if each differs by `effect`.

    `effect` in −1 … 1, larger than `beyond` in size; two-sided at `alpha`. With fewer, the same differences also come
    from a mean of ±`beyond`, if a rare image gains (loses) everything: P(no such image among them) > α / 2.
    """
    return math.ceil(math.log(2 / alpha) / math.log1p((abs(effect) - beyond) / (1 + beyond)))


def is_refuted(unit: Floats, means: Floats, alpha: Floats | float, left: Floats | None = None) -> NDArray[np.bool_]:
    """Whether a bet on higher values refutes each candidate mean at `alpha`.

    `unit`: rounds × sequences, values in 0 … 1. Each round broadcasts with `means` and `alpha`: one sequence against
    many candidates, or many sequences against one candidate. Stakes aim at the rounds that remain. A candidate that is
    refuted stays refuted whatever follows, because then nothing is staked.

    `left`: the rounds that are expected to remain, for tests that may stop earlier. Where the values so far justify a
    larger stake, they are bet instead: the stake of fastest growth (Kelly) for their mean, shrunk by 12 values
    without gain. So a large effect is shown long before the last round.
    """
    remaining = np.arange(len(unit), 0, -1) if left is None else left
    target = np.log(1 / np.asarray(alpha))
    wealth = np.zeros(np.broadcast(unit[0], means, target).shape)  # natural logarithms
    squares = means * (1 - means) + wealth  # one pseudo-observation of the largest possible variance
    gain = np.zeros_like(wealth)
    for index, value in enumerate(unit):
        missing = np.maximum(target - wealth, 0)
        stake = np.sqrt(2 * missing / remaining[index] * (index + 1) / squares)
        if left is not None:
            growth = np.maximum(gain, 0) / (index + _SHRINKAGE) * (index + 1) / squares
            stake = np.where(missing > _REACHED, np.maximum(stake, growth), 0)
        stake = np.minimum(stake, 1 / means)
        wealth += np.log(np.maximum(1 + stake * (value - means), 1e-300))
        squares += (value - means) ** 2
        gain += value - means
    return np.asarray(wealth >= target - _REACHED)


def _unit(differences: Floats, seed: int) -> Floats:
    return np.asarray((np.random.default_rng(seed).permutation(differences) + 1) / 2)


def _largest_refuted(unit: Floats, alpha: float, left: Floats | None = None) -> float:
    """The largest candidate mean on a grid of 0 … 1 that a bet on higher values refutes at `alpha`; 0 if none."""
    means = np.linspace(0, 1, _MEANS)[1:-1]
    return float(means[is_refuted(unit, means, alpha, left)].max(initial=0.0))
