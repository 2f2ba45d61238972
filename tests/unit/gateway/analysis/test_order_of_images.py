"""Bets averaged over orders: valid where the mean is at the border, and nearly independent of the order."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.betting import betting_p, is_refuted
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE
from gateway.analysis.power import detectable_drop
from shared.seeds import derive_seed

FAMILY = 8  # tested cells of a job
ACCURACY = 0.95
# P(lost), P(gained), and the size of a loss or gain: 1, or 1 / 3 where an image has three edits.
NULLS = (
    (0.05, 0.0, 1.0),
    (0.10, 0.05, 1.0),
    (0.30, 0.25, 1.0),
    (0.50, 0.45, 1.0),
    (0.15, 0.0, 1 / 3),
    (0.40, 0.25, 1 / 3),
)


def refuted_nulls(sources: int, null: tuple[float, float, float], tables: int) -> tuple[int, int]:
    """Tables whose true mean, −5 points, bets on lower means refute at 2.5 %, and bets on higher means."""
    lost, gained, size = null
    random = np.random.default_rng(derive_seed("null", sources, *map(str, null)))
    unit = (1 + size * random.choice([-1.0, 0.0, 1.0], (sources, tables), p=[lost, 1 - lost - gained, gained])) / 2
    low, high = (np.full(tables, (1 + sign * BEYOND) / 2) for sign in (1, -1))
    alpha = FALSE_DISCOVERY_RATE / 2
    return int(is_refuted(1 - unit, low, alpha).sum()), int(is_refuted(unit, high, alpha).sum())


def verdicts(sources: int, table: int, orders: int) -> list[bool]:
    """Whether one cell among `FAMILY` is a finding, in random orders of a table at 80 % power."""
    drop = detectable_drop(sources, 2 * FAMILY, ACCURACY, paired=False)
    assert drop is not None
    random = np.random.default_rng(derive_seed("verdict by order", sources, table))
    right, before = random.random(sources) < ACCURACY - drop, random.random(sources) < ACCURACY
    differences = right.astype(float) - before
    alpha = FALSE_DISCOVERY_RATE / FAMILY  # two-sided: one-sided in twice the family
    return [betting_p(random.permutation(differences), BEYOND) <= alpha for _ in range(orders)]


@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize("sources", [15, 40])
def test_a_true_mean_at_the_border_is_rarely_refuted(sources: int, null: tuple[float, float, float]) -> None:
    assert sum(refuted_nulls(sources, null, 400)) <= 0.05 * 400 + 2 * (400 * 0.05 * 0.95) ** 0.5


@pytest.mark.slow
def test_the_order_of_the_images_hardly_ever_decides() -> None:
    """In a single order it decided in 66 of 300 such tables of 40 images."""
    results = [verdicts(40, table, orders=4) for table in range(30)]
    assert sum(len(set(result)) > 1 for result in results) <= 4
    assert sum(all(result) for result in results) > 18
