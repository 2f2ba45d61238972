"""Intervals and p-values of a mean by betting against candidate means; valid at any n, for any distribution on −1 … 1.

Wealth of a bet against a true mean is a non-negative martingale, so it reaches 1/α with probability at most α
(Ville): Waudby-Smith & Ramdas 2024 (arXiv 2010.09686). Stakes aim at a wealth in the rounds that remain: STaR bets,
Voráček & Orabona 2025 (arXiv 2505.22422).

A bet depends on the order of the values, which says nothing about their mean. Where the number of values is fixed, the
final wealth is averaged over `ORDERS` fixed orders. The expected wealth in each is at most 1 under a true mean, so that
of the average is, too, and it reaches 1/α with probability at most α (Markov).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from gateway.analysis.effects import Floats, Integers
from shared.chunks import chunks
from shared.seeds import derive_seed

ORDERS = 32  # more orders change few verdicts (docs/measurements.md)
_AIM = 2.0  # each order aims at this multiple of 1/α, so that the average reaches 1/α if half of the orders get there
_MEANS = 1_024  # candidate means in 0 … 1
_COARSE = 32  # every 32nd candidate is tried first
_LEVELS = np.geomspace(1.0, 1e-9, 541)  # p-values in steps of 4 %
_LEVELS_AT_A_TIME = 64
_SHRINKAGE = 12  # imagined values without gain
_STAKES = 1_000  # constant bets to choose from
_UNKNOWN = 1.05  # factor: the images that a bet needs more if it has to learn the differences first
_REMEMBERED = 1_024  # cells without a changed prediction are alike, and a report that is built again asks for the same
_REACHED = 1e-12  # logarithm of wealth short of the target by rounding


def betting_interval(differences: Floats, level: float) -> tuple[float, float]:
    """The candidate means that no bet refutes at `level`, from n differences of independent images in any order."""
    return _interval(_bytes(differences), level)


@lru_cache(maxsize=_REMEMBERED)
def _interval(differences: bytes, level: float) -> tuple[float, float]:
    unit = _unit(np.frombuffer(differences))
    low = _largest_refuted(unit, (1 - level) / 2)
    high = 1 - _largest_refuted(1 - unit, (1 - level) / 2)
    return 2 * low - 1, 2 * high - 1


def betting_p(differences: Floats, beyond: float) -> float:
    """p-value of a mean within ±`beyond` (0 … 1): the smallest α at which, and at every larger level, bets refute it.

    P(p ≤ α) ≤ P(refuted at α) ≤ α, and the interval at level 1 − p lies beyond ±`beyond`. The grid is 1 … 1e-9.
    """
    return _p(_bytes(differences), beyond)


@lru_cache(maxsize=_REMEMBERED)
def _p(differences: bytes, beyond: float) -> float:
    unit = _unit(np.frombuffer(differences))
    higher = unit if unit.mean() > 0.5 else 1 - unit  # no bet against the sample mean refutes anything
    return _p_beyond(higher[:, np.newaxis, np.newaxis], beyond)


def _p_beyond(sides: Floats, beyond: float, left: Floats | None = None) -> float:
    """`sides`: rounds × sides × 1; the p-value is two-sided, even if bets are placed on one side only."""
    p_value = 1.0
    for levels in chunks(_LEVELS, _LEVELS_AT_A_TIME):
        refuted = is_refuted(sides, np.full(len(levels), (1 + beyond) / 2), levels / 2, left).any(axis=0)
        count = int(np.argmin(np.append(refuted, False)))
        p_value = float(levels[count - 1]) if count else p_value
        if count < len(levels):
            break
    return p_value


def anytime_interval(differences: Floats, level: float, left: Floats) -> tuple[float, float]:
    """As `betting_interval`, from differences in an order that was fixed before the first one was seen.

    `left`: before each difference, the number of differences still expected, itself included. The interval is valid for
    any number of differences, even one chosen from the data: Ville's inequality bounds the wealth after each of them.
    """
    unit = _unit(differences)
    low = _largest_refuted(unit, (1 - level) / 2, left)
    high = 1 - _largest_refuted(1 - unit, (1 - level) / 2, left)
    return 2 * low - 1, 2 * high - 1


def anytime_p(differences: Floats, beyond: float, left: Floats) -> float:
    """As `betting_p`, from differences as `anytime_interval` takes them. More differences never raise it."""
    unit = _unit(differences)
    return _p_beyond(np.stack([unit, 1 - unit], axis=1)[:, :, np.newaxis], beyond, left)


def anytime_p_lost(differences: Floats, beyond: float, left: Floats) -> float:
    """As `anytime_p`, of the hypothesis that the mean is at least −`beyond`, one-sided."""
    two_sided = _p_beyond((1 - _unit(differences))[:, np.newaxis, np.newaxis], beyond, left)
    return two_sided / 2 if two_sided < 1 else 1.0


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


def images_to_refute(differences: Floats, beyond: float, alpha: float) -> int:
    """About how many images with such differences refute a mean within ±`beyond`, two-sided at `alpha`.

    The mean of `differences` is larger than `beyond` in size. The logarithm of the best constant bet's wealth grows by
    its mean growth per image; the bets of `betting_p`, which do not know the differences, need about 5 % more images.
    """
    unit, mean = _unit(differences), (1 + beyond) / 2
    surplus, counts = np.unique((unit if unit.mean() > 0.5 else 1 - unit) - mean, return_counts=True)
    stakes = np.linspace(0, 1 / mean, _STAKES, endpoint=False)[1:, np.newaxis]
    growth = float((np.log1p(stakes * surplus) @ counts).max()) / len(unit)
    return math.ceil(_UNKNOWN * math.log(2 / alpha) / growth)


def is_refuted(
    unit: Floats, means: Floats, alpha: Floats | float, left: Floats | None = None, orders: int = ORDERS
) -> NDArray[np.bool_]:
    """Whether bets on higher values refute each candidate mean at `alpha`.

    `unit`: rounds × sequences, values in 0 … 1. Each round broadcasts with `means` and `alpha`: one sequence against
    many candidates, or many sequences against one candidate. The wealth is averaged over `orders` orders.

    `left`: the number of rounds still expected, for tests that may stop early. The values are then bet on in the given
    order only, and a refuted candidate stays refuted, because nothing is staked after that.
    """
    target = np.log(1 / np.asarray(alpha))
    if left is not None:
        wealth = _wealth(unit, np.arange(len(unit))[:, np.newaxis], means, target, left)[0]
    else:
        by_order = _wealth(unit, fixed_orders(len(unit), orders), means, target + math.log(_AIM))
        wealth = logsumexp(by_order, axis=0) - math.log(len(by_order))
    return np.asarray(wealth >= target - _REACHED)


def fixed_orders(n: int, orders: int) -> Integers:
    """Orders of n values (n × `orders`). They depend only on n, so a job's results do not depend on a seed."""
    random = np.random.default_rng(derive_seed("orders", n))
    return random.permuted(np.tile(np.arange(n), (orders, 1)), axis=1).T


def _wealth(unit: Floats, orders: Integers, means: Floats, goal: Floats, left: Floats | None = None) -> Floats:
    """The logarithms of the final wealth, orders × sequences. Stakes aim at `goal` in the rounds that remain.

    With `left`, where the values so far justify a larger stake, they are bet instead: the stake of fastest growth
    (Kelly) for their mean, shrunk by 12 values without gain. So a large effect is shown long before the last round.
    """
    remaining = np.arange(len(unit), 0, -1) if left is None else left
    wealth = np.zeros((orders.shape[1], *np.broadcast_shapes(unit.shape[1:], means.shape, goal.shape)))
    squares = means * (1 - means) + wealth  # one pseudo-observation of the largest possible variance
    gain, most = np.zeros_like(wealth), 1 / means
    for index, places in enumerate(orders):
        missing = np.maximum(goal - wealth, 0)
        stake = np.sqrt(2 * missing / remaining[index] * (index + 1) / squares)
        if left is not None:
            growth = np.maximum(gain, 0) / (index + _SHRINKAGE) * (index + 1) / squares
            stake = np.where(missing > _REACHED, np.maximum(stake, growth), 0)
        stake = np.minimum(stake, most)
        surplus = unit[places] - means
        wealth += np.log(np.maximum(1 + stake * surplus, 1e-300))
        squares += surplus**2
        if left is not None:
            gain += surplus
    return wealth


def _bytes(differences: Floats) -> bytes:
    return np.asarray(differences, np.float64).tobytes()


def _unit(differences: Floats) -> Floats:
    return (np.asarray(differences) + 1) / 2


def _largest_refuted(unit: Floats, alpha: float, left: Floats | None = None) -> float:
    """The largest candidate mean on a grid of 0 … 1 that bets on higher values refute at `alpha`; 0 if none."""
    means, values = np.linspace(0, 1, _MEANS + 1)[1:-1], unit[:, np.newaxis]
    coarse = np.flatnonzero(is_refuted(values, means[_COARSE - 1 :: _COARSE], alpha, left))
    start = _COARSE * (int(coarse[-1]) + 1) if len(coarse) else 0
    fine = means[start : start + _COARSE - 1]
    largest = float(means[start - 1]) if start else 0.0
    return float(fine[is_refuted(values, fine, alpha, left)].max(initial=largest))
