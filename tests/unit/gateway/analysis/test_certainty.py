"""Intervals and p-values: their promises, exactly or in simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from gateway.analysis.betting import betting_interval, betting_p, least_images
from gateway.analysis.certainty import (
    bootstrap_t,
    clustered_rate,
    images_needed,
    loss_limit,
    mean_interval,
    p_beyond,
)
from gateway.analysis.effects import Differences, Floats


@pytest.mark.slow
@pytest.mark.parametrize("n", [14, 60, 400])
@pytest.mark.parametrize("beyond", [0.0, 0.05])
def test_a_p_value_below_alpha_means_an_interval_beyond(n: int, beyond: float) -> None:
    """The p-value is the interval inverted, whichever interval is used."""
    random = np.random.default_rng(n)
    for seed in range(12):
        drop = random.random()
        differences = random.choice([-1.0, 0.0, 1.0], n, p=[0.15 + 0.6 * drop, 0.7 - 0.6 * drop, 0.15])
        p = p_beyond(differences, beyond, seed)
        for level in (0.9, 0.95, 0.99, 0.999):
            interval = mean_interval(differences, level, seed)
            past = max(-interval.high, interval.low) - beyond
            assert (p <= 1 - level) == (past > 0) or abs(past) < 0.003  # the grids of means and of levels


def test_many_edits_with_one_null_arm_are_not_certain_by_chance() -> None:
    """Skewed without an effect: 16 of 80 sources lose an edit or two, none has a wrong null arm."""
    differences = -np.repeat([0.0, 1 / 8, 2 / 8], [64, 13, 3])
    assert p_beyond(differences, 0.0, seed=1) > 0.05
    assert p_beyond(-np.ones(80), 0.05, seed=1) < 1e-8
    assert p_beyond(np.zeros(80), 0.05, seed=1) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("probabilities", [[0.05, 0.95, 0.0], [0.3, 0.45, 0.25]])
def test_p_values_of_effects_at_the_limit_are_rarely_small(probabilities: list[float]) -> None:
    random = np.random.default_rng(7)
    small = [
        p_beyond(random.choice([-1.0, 0.0, 1.0], 60, p=probabilities), 0.05, trial) <= 0.05 for trial in range(300)
    ]
    assert np.mean(small) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize("n", [12, 40, 80])
def test_a_rate_over_independent_images_covers_at_every_rate(n: int) -> None:
    """Exactly, by adding up the binomial distribution."""
    rates = [clustered_rate(np.arange(n) < count, np.arange(n)) for count in range(n + 1)]
    for p in np.linspace(0.002, 0.998, 300):
        covered = [rate.low <= p <= rate.high for rate in rates]
        assert binom.pmf(np.arange(n + 1), n, p)[covered].sum() > 0.93


def test_siblings_widen_a_rate_and_do_not_where_they_are_independent() -> None:
    random = np.random.default_rng(8)
    of_source = random.random(40) < 0.3
    alike = clustered_rate(np.repeat(of_source, 5), np.repeat(np.arange(40), 5))
    once = clustered_rate(of_source, np.arange(40))
    free = clustered_rate(random.random(200) < 0.3, np.repeat(np.arange(40), 5))
    assert (alike.count, alike.n, alike.sources) == (5 * once.count, 200, 40)
    assert alike.high - alike.low == pytest.approx(once.high - once.low, abs=0.02)
    assert free.high - free.low < 0.6 * (once.high - once.low)


def test_rates_of_nothing_of_one_source_and_without_exception() -> None:
    assert clustered_rate(np.zeros(0, bool), np.zeros(0, np.int64)).value is None
    rate = clustered_rate(np.ones(9, bool), np.zeros(9, np.int64))
    assert (rate.value, rate.low, rate.high, rate.sources) == (1.0, 0.0, 1.0, 1)
    none = clustered_rate(np.zeros(96, bool), np.repeat(np.arange(24), 4))
    assert none.low == 0
    assert 0.03 < none.high < 0.16
    everything = clustered_rate(np.ones(96, bool), np.repeat(np.arange(24), 4))
    assert everything.high == 1
    assert everything.low == pytest.approx(1 - none.high)


def _coverage(interval: object, n: int, level: float, probabilities: list[float], trials: int) -> float:
    random = np.random.default_rng(20)
    mean = probabilities[2] - probabilities[0]
    covered = 0
    for trial in range(trials):
        low, high = interval(random.choice([-1.0, 0.0, 1.0], n, p=probabilities), level, trial)  # type: ignore[operator]
        covered += low <= mean <= high
    return covered / trials


@pytest.mark.slow
@pytest.mark.parametrize("probabilities", [[0.05, 0.95, 0.0], [0.9, 0.1, 0.0], [0.4, 0.5, 0.1]])
@pytest.mark.parametrize("n", [12, 25])
def test_the_betting_interval_covers_at_small_n(n: int, probabilities: list[float]) -> None:
    assert _coverage(lambda values, level, _: betting_interval(values, level), n, 0.9, probabilities, 400) >= 0.88


def test_bootstrap_t_covers_where_it_is_used() -> None:
    assert _coverage(bootstrap_t, 40, 0.95, [0.4, 0.5, 0.1], 200) >= 0.91


def test_the_interval_is_chosen_by_size_and_mixture() -> None:
    mixed, uniform = np.repeat([-1.0, 0.0, 1.0], [20, 10, 10]), np.repeat([-1.0, 0.0], 20)
    assert mean_interval(mixed, 0.95, 1).kind == "bootstrap-t"
    assert mean_interval(mixed, 0.999, 1).kind == "betting"
    assert mean_interval(uniform, 0.95, 1).kind == "betting"
    assert mean_interval(mixed[1:], 0.95, 1).kind == "bootstrap-t"
    assert mean_interval(mixed[:39], 0.95, 1).kind == "betting"


def test_small_changes_with_rare_large_ones_are_left_to_bets() -> None:
    """The bootstrap covered −2.4 points in 63 % of samples: signs of IoU are mixed, and a rare loss may be missing."""
    random = np.random.default_rng(5)
    for _ in range(60):
        differences = random.normal(0, 0.02, 40) - 0.8 * (random.random(40) < 0.03)
        interval = mean_interval(differences, 0.95, 1)
        assert interval.kind == "betting"
        assert interval.low <= -0.024 <= interval.high


@pytest.mark.parametrize("differences", [-np.ones(12), np.zeros(30), np.repeat([-1.0, 0.0], 25)])
def test_intervals_hold_the_mean_stay_in_range_and_widen_with_their_level(differences: Floats) -> None:
    narrow, wide = mean_interval(differences, 0.95, 4), mean_interval(differences, 0.995, 4)
    assert -1 <= wide.low <= narrow.low <= differences.mean() <= narrow.high <= wide.high <= 1
    assert narrow == mean_interval(differences, 0.95, 4)


def test_a_unanimous_failure_of_twelve_is_clear_even_after_selection() -> None:
    _, high = betting_interval(-np.ones(12), 1 - 0.05 / 8)
    assert high < -0.2


@pytest.mark.parametrize(("drop", "alpha"), [(0.08, 0.05), (0.12, 0.05), (0.2, 0.05), (0.08, 0.05 / 8)])
def test_a_loss_that_all_images_share_is_established_with_little_more_than_any_test_needs(
    drop: float, alpha: float
) -> None:
    least = least_images(-drop, 0.05, alpha)
    gains = (drop - 0.05) / (1 + drop)  # the share of images that gain everything in a mean of −5 points
    assert (1 - gains) ** (least - 1) > alpha / 2 >= (1 - gains) ** least
    assert betting_p(np.full(least - 1, -drop), 0.05) > alpha
    assert betting_p(np.full(round(1.15 * least), -drop), 0.05) <= alpha


def of(values: Floats) -> Differences:
    return Differences(np.arange(len(values)), values, values, len(values))


def test_images_needed_are_no_fewer_than_any_test_needs_if_all_images_agree() -> None:
    """The spread of 200 equal differences alone would say 43 images."""
    least = least_images(-0.08, 0.05, 0.1)
    assert least == 107
    assert least <= (images_needed(of(np.full(200, -0.08)), 0.05, 12, family=1) or 0) <= 1.1 * least


def test_images_needed_grows_as_the_effect_shrinks_and_as_the_family_grows() -> None:
    strong, weak = of(np.array([-1, -1, 0, -1.0])), of(np.array([-1, 0, 0, 0, 0, 0, 0.0]))
    assert images_needed(strong, 0.05, 12, family=1) == 12
    assert (images_needed(weak, 0.05, 12, family=1) or 0) > 50
    assert images_needed(of(np.zeros(5)), 0.05, 12, family=1) is None
    by_family = [images_needed(strong, 0.05, 12, family) or 0 for family in (10, 100, 1000)]
    assert by_family == sorted(set(by_family))


def test_the_largest_limit_of_a_loss_covers_the_largest_loss_without_a_correction_for_many_cells() -> None:
    """19 sound cells of 40 images beside one that loses 25 points on 20, in 2,000 tables."""
    random, limits = np.random.default_rng(2), dict[bytes, float]()

    def limit(correct: Floats) -> float:
        key = np.sort(correct).tobytes()
        if key not in limits:
            cell = Differences(np.arange(len(correct)), correct, correct, len(correct), null_accuracy=0.9)
            limits[key] = loss_limit(cell, 0.95, 1)
        return limits[key]

    covered = 0
    for _ in range(2_000):
        worst = -random.binomial(1, 0.25, 20).astype(float)
        sound = random.choice([-1.0, 0.0, 1.0], (19, 40), p=[0.02, 0.96, 0.02])
        covered += max(limit(worst), *map(limit, sound)) >= 0.25
    assert covered / 2_000 >= 0.95
