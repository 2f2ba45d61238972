"""The exact unconditional test of matched pairs with a margin, and the intervals that belong to it.

Each of n independent pairs is lost (right on the arm, wrong on the edit), gained or unchanged. The hypothesis is that
P(lost) − P(gained) ≤ margin. Tables are ordered by Tango's score statistic (1998, Statistics in Medicine 17:891). The
p-value is the largest probability, over P(gained) in a confidence set of level 1 − `GAMMA`, of a table that is ordered
as high, plus `GAMMA` (Berger & Boos 1994, JASA 89:1012): P(p ≤ α) ≤ α at every n. The score statistic rises with losses
and falls with gains, so within the hypothesis the probability is largest on its border (Sidik 2003).

An interval inverts the test, in the order of one margin for all: the larger the margin, the larger the p-value, so a
limit lies beyond this margin exactly where its test rejects (Buehler 1957).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import betainc, betaincinv, gammaln, xlog1py, xlogy
from scipy.stats import norm

from gateway.analysis.effects import Floats, Integers

GAMMA = 1e-5  # of 5 % / 40, the level of the strictest test of an ordinary table, less than 1 %
_STEPS = 2_000  # limits are rounded outwards to 1 / _STEPS, a twentieth of a point
_POINTS = (25, 9, 9)  # values of P(gained) that are tried: in the whole confidence set, then around the best ones
_NEGLIGIBLE = 1e-14  # probability
_ROUNDING = 1e-9  # of the statistic: tables within it are tied
_REMEMBERED = 16_384
_BOUNDARY_POINTS = 8  # numbers of gains above 3 at which the boundary of a rejection is found; it is a line between


class PairCounts(NamedTuple):
    """Counts of independent pairs: `n` in all, `lost` and `gained` of them."""

    n: int
    lost: int
    gained: int

    @classmethod
    def of(cls, differences: Floats) -> PairCounts:
        """Of differences of −1, 0 and 1."""
        return cls(len(differences), int((differences < 0).sum()), int((differences > 0).sum()))

    @property
    def mirrored(self) -> PairCounts:
        """Losses and gains exchanged."""
        return PairCounts(self.n, self.gained, self.lost)


def is_paired(differences: Floats) -> bool:
    """Whether all differences are −1, 0 or 1."""
    return bool(np.isin(differences, (-1.0, 0.0, 1.0)).all())


def score(n: int, lost: Integers, gained: Integers, margin: float) -> Floats:
    """Tango's statistic of P(lost) − P(gained) = `margin` (0 … 1), which is large if more is lost; 0 if it is 0 / 0."""
    linear = (2 * n - lost + gained) * margin - lost - gained
    constant = gained * margin * (1 - margin)
    share = (np.sqrt(linear**2 + 8 * n * constant) - linear) / (4 * n)  # P(gained) of the largest likelihood
    variance = n * (2 * share + margin * (1 - margin))
    surplus = lost - gained - n * margin
    return np.asarray(surplus / np.sqrt(np.where(variance > 0, variance, np.inf)))


def p_value(pairs: PairCounts, margin: float, order: float | None = None) -> float:
    """The p-value of the hypothesis that P(lost) − P(gained) ≤ `margin` (−1 … 1).

    `order`: the margin (0 … 1) whose statistic orders the tables; None: `margin` itself.
    """
    return _p_value(pairs, round(margin, 9), round(margin if order is None else order, 9))


@lru_cache(maxsize=_REMEMBERED)
def _p_value(pairs: PairCounts, margin: float, order: float) -> float:
    n, _, gained = pairs
    low = betaincinv(gained, n - gained + 1, GAMMA / 2) if gained else 0.0
    high = betaincinv(gained + 1, n - gained, 1 - GAMMA / 2) if gained < n else 1.0
    largest = (1 - margin) / 2  # P(gained), if all pairs are lost or gained; beyond, fewer are lost and less is likely
    first, last = np.arcsin(np.sqrt(np.clip([low, high], max(0.0, -margin), largest))).tolist()
    least, most = _boundary(pairs, order), 0.0
    for points in _POINTS:
        angles = np.linspace(first, last, points)
        gain = np.sin(angles) ** 2
        chance = rejected_share(least, n, np.clip(gain + margin, 0.0, 1.0 - gain), gain)
        best = int(chance.argmax())
        most = max(most, float(chance[best]))
        first, last = float(angles[max(best - 1, 0)]), float(angles[min(best + 1, points - 1)])
    return min(1.0, most + GAMMA)


@lru_cache(maxsize=_REMEMBERED)
def _boundary(pairs: PairCounts, order: float) -> Integers:
    """For 0 … n gains, the fewest losses that are ordered as high as `pairs`; one more than possible if none are."""
    target = score(pairs.n, np.array(pairs.lost), np.array(pairs.gained), order)
    return _least_losses(pairs.n, float(target) - _ROUNDING, order)


def _least_losses(n: int, target: float, order: float) -> Integers:
    """For 0 … n gains, the fewest losses whose statistic reaches `target`; one more than possible if none does."""
    gained = np.arange(n + 1)
    least, most = np.zeros_like(gained), n + 1 - gained
    for _ in range(n.bit_length() + 1):
        middle = (least + most) // 2
        high = (score(n, middle, gained, order) >= target) | (middle > n - gained)
        least, most = np.where(high, least, np.minimum(middle + 1, most)), np.where(high, middle, most)
    return most


def rejected_share(least: Integers, n: int, loss: Floats, gain: Floats) -> Floats:
    """P(lost ≥ `least` of the number gained) in n pairs, for each P(lost) in `loss` and P(gained) in `gain`.

    `least`: for 0 … n gains. The number of gains is binomial, and given it that of losses is.
    """
    gained = np.arange(n + 1)
    combinations = gammaln(n + 1) - gammaln(gained + 1) - gammaln(n - gained + 1)
    shares = gain[:, np.newaxis]
    weights = np.exp(combinations + xlogy(gained, shares) + xlog1py(n - gained, -shares))
    row, column = np.nonzero((weights > _NEGLIGIBLE) & (least <= n - gained))
    losses, left = least[column], n - gained[column]
    of_rest = np.clip(loss / np.maximum(1 - gain, 1e-300), 0.0, 1.0)[row]
    tail = np.where(losses <= 0, 1.0, betainc(np.maximum(losses, 1), left - losses + 1, of_rest))
    return np.bincount(row, weights[row, column] * tail, len(gain)).astype(np.float64)


def least_loss(pairs: PairCounts, alpha: float, order: float) -> float:
    """The one-sided lower limit of P(lost) − P(gained): the largest margin rejected at `alpha`; −1 if none is."""
    low, high = -_STEPS, _STEPS
    while high - low > 1:
        middle = (low + high) // 2
        if p_value(pairs, middle / _STEPS, order) <= alpha:
            low = middle
        else:
            high = middle
    return low / _STEPS


def exact_interval(pairs: PairCounts, level: float, order: float) -> tuple[float, float]:
    """The two-sided interval of the effect, P(gained) − P(lost): both one-sided limits at (1 − `level`) / 2."""
    alpha = (1 - level) / 2
    return least_loss(pairs.mirrored, alpha, order), -least_loss(pairs, alpha, order)


def power(n: int, alpha: float, margin: float, loss: float, gain: float, exact: bool = True) -> float:
    """How often n pairs reject at `alpha` that P(lost) − P(gained) ≤ `margin`, under P(lost) and P(gained).

    Without `exact`, by the normal quantile of the statistic, which takes no time.
    """
    least = _rejection(n, alpha, margin) if exact else _least_losses(n, float(norm.isf(alpha)), margin)
    return float(rejected_share(least, n, np.array([loss]), np.array([gain]))[0])


@lru_cache(maxsize=512)
def _rejection(n: int, alpha: float, margin: float) -> Integers:
    """For 0 … n gains, about the fewest losses that are rejected at `alpha`; one more than possible if none are.

    Exact at some numbers of gains and a line between them: up to one loss off, more from gains of a third of n on.
    """
    numbers = np.arange(n + 1)
    guess = _least_losses(n, float(norm.isf(alpha)), margin)
    tried = np.unique(np.concatenate([numbers[:4], np.geomspace(4, max(4, n // 2), _BOUNDARY_POINTS).astype(int)]))
    found = []
    for gained in tried[tried <= n].tolist():
        losses = int(guess[gained])

        def holds(losses: int, gained: int = gained) -> bool:
            return losses > n - gained or p_value(PairCounts(n, losses, gained), margin) <= alpha

        while not holds(losses):
            losses += 1
        while losses > 0 and holds(losses - 1):
            losses -= 1
        found.append(losses)
        if losses > n - gained:
            break
    between = np.ceil(np.interp(numbers, tried[: len(found)], found) - _ROUNDING).astype(int)
    least: Integers = np.minimum(between, n - numbers + 1)
    return least
