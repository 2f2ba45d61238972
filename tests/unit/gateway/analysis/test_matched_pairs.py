"""The exact test of matched pairs: its size by enumeration of all tables, its order, and its intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln, xlogy
from scipy.stats import binom

from gateway.analysis.effects import Differences, Floats
from gateway.analysis.findings import assess
from gateway.analysis.matched_pairs import GAMMA, PairCounts, exact_interval, least_loss, p_value, power
from shared.schemas.effects import BEYOND, Cell


def all_p_values(n: int, margin: float) -> Floats:
    """By losses and gains; 1 where they are more than n."""
    p_values = np.ones((n + 1, n + 1))
    for lost in range(n + 1):
        for gained in range(n + 1 - lost):
            p_values[lost, gained] = p_value(PairCounts(n, lost, gained), margin)
    return p_values


def chances(n: int, loss: float, gain: float) -> Floats:
    """The probability of each table."""
    lost, gained = np.indices((n + 1, n + 1))
    same = np.maximum(n - lost - gained, 0)
    ways = gammaln(n + 1) - gammaln(lost + 1) - gammaln(gained + 1) - gammaln(same + 1)
    logarithm = ways + xlogy(lost, loss) + xlogy(gained, gain) + xlogy(same, max(0.0, 1 - loss - gain))
    return np.where(lost + gained <= n, np.exp(logarithm), 0.0)


@pytest.mark.parametrize("n", [6, 13, 24])
@pytest.mark.parametrize("margin", [0.0, BEYOND, 0.2])
def test_a_true_hypothesis_is_rejected_at_most_as_often_as_stated(n: int, margin: float) -> None:
    p_values = all_p_values(n, margin)
    possible = np.add.outer(np.arange(n), np.arange(n + 1)) < n
    assert (np.diff(p_values, axis=0)[possible] <= 1e-9).all(), "more losses lower it"
    for gain in np.linspace(0, (1 - margin) / 2, 25):
        for surplus in (margin, margin / 2, 0.0):
            chance = chances(n, gain + surplus, gain)
            for alpha in (0.05, 0.01, 0.05 / 40):
                assert chance[p_values <= alpha].sum() <= alpha + 1e-12


def test_without_gains_and_margin_it_is_no_weaker_than_the_sign_test() -> None:
    """McNemar's exact test conditions on the pairs that differ: 8 of 8 lost have p = 1 / 256."""
    for lost in (5, 8, 12):
        assert p_value(PairCounts(40, lost, 0), 0.0) <= binom.sf(lost - 1, lost, 0.5) + GAMMA


@pytest.mark.slow
@given(st.integers(1, 60), st.data())
@settings(max_examples=60, deadline=None)
def test_an_interval_has_the_estimate_and_agrees_with_the_test(n: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, n))
    pairs = PairCounts(n, lost, data.draw(st.integers(0, n - lost)))
    low, high = exact_interval(pairs, 0.95, BEYOND)
    assert -1 <= low <= (pairs.gained - pairs.lost) / n <= high <= 1
    for alpha in (0.05, 0.05 / 40):
        assert (least_loss(pairs, alpha, BEYOND) >= BEYOND) == (p_value(pairs, BEYOND) <= alpha)


@pytest.mark.parametrize(("drop", "images"), [(0.6, 26), (0.4, 48), (0.3, 80)])
def test_fewer_images_show_a_drop_than_bets_take(drop: float, images: int) -> None:
    """Bets took 28, 54 and 91 images at 5 % / 40 and an accuracy of 95 %."""
    worse, better = 0.95 * (0.05 + drop), 0.05 * (0.95 - drop)
    assert power(images, 0.05 / 40, BEYOND, worse, better) >= 0.8
    assert power(images // 2, 0.05 / 40, BEYOND, worse, better) < 0.8


def test_a_loss_that_may_be_small_is_suspected_and_a_finding_has_a_limit() -> None:
    def pairs(lost: int, gained: int, n: int = 100) -> Differences:
        changes = np.repeat([-1.0, 1.0, 0.0], [lost, gained, n - lost - gained])
        return Differences(np.arange(n), changes, np.full(n, np.nan), n, null_accuracy=0.95)

    counts = {"night": (80, 0), "snow": (9, 0), "fog": (2, 1), "sun": (0, 50)}
    cells = {Cell(label="bus", factor="weather", value=name, direction="to"): pairs(*of) for name, of in counts.items()}
    night, sun, snow, fog = assess(cells, 1)
    standings = [effect.standing for effect in (night, sun, snow, fog)]
    assert standings == ["weakness", "improvement", "suspected weakness", "nothing found"]
    assert night.interval is not None
    assert night.interval.kind == "exact"
    for finding in (night, sun):
        assert finding.selected_interval is not None
        assert finding.selected_interval.level == pytest.approx(1 - 0.05 / 4)
    assert night.selected_interval is not None
    assert night.selected_interval.high < -BEYOND
    assert (night.q_any_loss, snow.selected_interval) == (None, None)
    assert snow.q_any_loss is not None
    assert snow.q_any_loss <= 0.05 < (snow.q_value or 0)
