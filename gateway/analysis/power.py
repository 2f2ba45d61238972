"""Power: the drops that a cell can detect, exactly for matched pairs, and from simulated cells where the test bets."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from gateway.analysis.betting import is_refuted
from gateway.analysis.certainty import BOOTSTRAP_FROM, BOOTSTRAP_UP_TO, EACH_SIDE
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE, LEAST_SOURCES
from gateway.analysis.matched_pairs import power

POWER = 0.8
ACCURACY = 0.95  # assumed accuracy of a model under test on null arms if unknown, and the highest assumed one
MOST_SOURCES = 5_000  # largest simulated cell; more source images detect at least as much
_DRAWS = 500
# Orders of bets in simulated cells. With 15, 40 and 80 images (2,000 draws, eight cells) the power is 80.9, 81.0 and
# 81.9 %; with 32 orders, which take eight times as long, 80.1, 82.3 and 81.4 %.
_ORDERS = 4
_FIRST_STEP = 16
_FINE_BELOW = 50  # source images; larger numbers are rounded to two digits to limit the number of simulations


def assumed_accuracy(measured: float | None) -> float:
    """The accuracy on null arms to the nearest 5 points, in 0.5 … 0.95, to limit the number of simulations."""
    return ACCURACY if measured is None else min(ACCURACY, max(0.5, round(20 * measured) / 20))


@lru_cache(maxsize=4096)
def detectable_drop(sources: int, family: int, accuracy: float = ACCURACY, paired: bool = True) -> float | None:
    """The smallest drop in accuracy (0 … 1, whole points) that this many source images detect with 80 % power.

    Assumes the worst case, that it is the only finding among the `family` cells tested together; one counterfactual per
    source image; `accuracy` on null arms (0 … 1); and independent errors. `paired`: as in `Differences`. None if no
    drop is detectable.
    """
    if sources < LEAST_SOURCES:
        return None
    if sources > MOST_SOURCES:
        return detectable_drop(MOST_SOURCES, family, accuracy, paired)
    if sources > _FINE_BELOW:
        digits = 10 ** (len(str(sources)) - 2)
        if sources % digits:
            return detectable_drop(sources // digits * digits, family, accuracy, paired)
    least, most = round(100 * BEYOND), round(100 * accuracy)
    if finding_rate(most / 100, sources, family, accuracy, paired) < POWER:
        return None
    while most - least > 1:
        middle = (least + most) // 2
        if finding_rate(middle / 100, sources, family, accuracy, paired) >= POWER:
            most = middle
        else:
            least = middle
    return most / 100


@lru_cache(maxsize=256)
def sources_needed(drop: float, family: int, accuracy: float = ACCURACY, paired: bool = True) -> int | None:
    """The number of images that detect a drop (0.05 … `accuracy`) with 80 % power, to two digits; None beyond 5,000."""
    if drop > accuracy:
        return None
    step, sources = _FIRST_STEP, LEAST_SOURCES
    while finding_rate(drop, sources, family, accuracy, paired, exact=False) < POWER:
        sources += step
        step *= 2
        if sources > MOST_SOURCES:
            return None
    while step > max(1, sources // 50):
        step //= 2
        less = sources - step
        if less >= LEAST_SOURCES and finding_rate(drop, less, family, accuracy, paired, exact=False) >= POWER:
            sources -= step
    if paired:
        sources = _exactly(drop, sources, family, accuracy)
    digits = int(10 ** max(0, len(str(sources)) - 2))
    return -(-sources // digits) * digits


def _exactly(drop: float, sources: int, family: int, accuracy: float) -> int:
    """The number near `sources` from which the exact test detects the drop, in steps of a fortieth."""
    step = max(1, sources // 40)
    while finding_rate(drop, sources, family, accuracy) < POWER:
        sources += step
    while sources - step >= LEAST_SOURCES and finding_rate(drop, sources - step, family, accuracy) >= POWER:
        sources -= step
    return sources


def finding_rate(
    drop: float, sources: int, family: int, accuracy: float = ACCURACY, paired: bool = True, exact: bool = True
) -> float:
    """The share of cells with this drop that are findings, by a normal approximation if not `exact`.

    Where the test bets, cells are simulated, with the same random numbers for all drops.
    """
    alpha = FALSE_DISCOVERY_RATE / max(1, family)
    worse, better = accuracy * (1 - accuracy + drop), (1 - accuracy) * (accuracy - drop)
    if paired:
        return power(sources, alpha, BEYOND, worse, better, exact)
    differences = _draw(worse, better, sources)
    lost, gained = (differences < 0).sum(axis=0), (differences > 0).sum(axis=0)
    beyond = is_refuted((1 - differences) / 2, np.full(_DRAWS, (1 + BEYOND) / 2), alpha, orders=_ORDERS)
    if sources >= BOOTSTRAP_FROM and 1 - 2 * alpha <= BOOTSTRAP_UP_TO:
        mixed = np.minimum(lost, gained) >= EACH_SIDE
        beyond = np.where(mixed, _is_beyond(lost, gained, sources, 1 - 2 * alpha), beyond)
    return float(beyond.mean())


def _is_beyond(lost: Integers, gained: Integers, sources: int, level: float) -> NDArray[np.bool_]:
    """Whether Student's interval of cells with these counts lies below −5 points.

    It stands for the bootstrap-t interval, which would have to be drawn for thousands of cells. Of 252 detectable drops
    and needed numbers of images 231 are the same. Of the others one drop is a point larger; the rest are smaller, by a
    point of the drop or up to 8 % of the images.
    """
    mean, squares = (gained - lost) / sources, (gained + lost) / sources
    error = np.sqrt((squares - mean**2) / (sources - 1))
    below: NDArray[np.bool_] = mean + float(t.ppf((1 + level) / 2, sources - 1)) * error < -BEYOND
    return below


def _draw(worse: float, better: float, sources: int) -> Floats:
    """Differences of −1, 0 and 1 (sources × draws) with independent errors on null arm and counterfactual."""
    uniform = np.random.default_rng(sources).random((sources, _DRAWS))
    return np.where(uniform < worse, -1.0, np.where(uniform > 1 - better, 1.0, 0.0))
