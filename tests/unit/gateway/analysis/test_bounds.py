"""Bounds over refused edits: exact against every choice, and with known truth."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.analysis.bounds import MostValid, Refused, effect_bounds, possible_difference
from gateway.analysis.effects import Differences, Units
from gateway.analysis.validity import Screened, most_valid_accepted, most_valid_refused
from shared.schemas.effects import CheckErrors
from tests.support.simulated_refusals import Refusals, mean_row

EDITS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-1.0, -0.5, 0.0, 1.0])), max_size=6)


def counted(edits: list[tuple[int, float]]) -> Differences:
    source = np.array([edit[0] for edit in edits])
    units = Units.of(source, source)
    means = units.means(np.array([edit[1] for edit in edits]))
    return Differences(units.group, means, means, len(edits), sizes=units.rows_of_group)


def refused_pairs(edits: list[tuple[int, float]], lost: list[tuple[int, float]]) -> Refused:
    pairs = [*edits, *lost]
    group, difference = np.array([pair[0] for pair in pairs], int), np.array([pair[1] for pair in pairs], float)
    return Refused(group, difference, difference, np.arange(len(pairs)) >= len(edits))


def choices(pairs: list[tuple[int, float]], share: float) -> list[tuple[tuple[int, float], ...]]:
    most = int(np.ceil(share * len(pairs) - 1e-9))
    return [chosen for size in range(most + 1) for chosen in combinations(pairs, size)]


SHARES = st.sampled_from([0.0, 0.3, 0.5, 1.0])


@given(EDITS.filter(bool), EDITS, SHARES)
def test_the_bounds_are_those_of_the_best_and_worst_choice(
    edits: list[tuple[int, float]], refused: list[tuple[int, float]], share: float
) -> None:
    bounds = effect_bounds(counted(edits), refused_pairs(refused, []), MostValid(share, 1.0, "none"), 1)
    effects = [float(counted([*edits, *chosen]).correct.mean()) for chosen in choices(refused, share)]
    assert (bounds.low, bounds.high) == pytest.approx((min(effects), max(effects)))
    assert (bounds.refused, bounds.lost, bounds.interval) == (len(refused), 0, None)


@pytest.mark.slow
@given(EDITS.filter(bool), EDITS, EDITS, SHARES, SHARES, st.sampled_from([0, 10_000]))
def test_bounds_over_refused_edits_and_lost_pairs_contain_every_choice_of_both(
    edits: list[tuple[int, float]],
    refused: list[tuple[int, float]],
    lost: list[tuple[int, float]],
    share: float,
    lost_share: float,
    most_choices: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.analysis.bounds.MOST_CHOICES", most_choices)
        bounds = effect_bounds(counted(edits), refused_pairs(refused, lost), MostValid(share, lost_share, "none"), 1)
    effects = [
        float(counted([*edits, *chosen, *with_lost]).correct.mean())
        for chosen in choices(refused, share)
        for with_lost in choices(lost, lost_share)
    ]
    assert bounds.low <= min(effects) + 1e-9
    assert bounds.high >= max(effects) - 1e-9
    assert (bounds.refused, bounds.lost) == (len(refused), len(lost))
    if share == lost_share == 1:
        assert (bounds.low, bounds.high) == pytest.approx((min(effects), max(effects)))


def test_bounds_over_two_kinds_are_hardly_wider_than_the_choices() -> None:
    """Every source has a counted pair of 0; the best choice takes −1 from 15 refused edits and from 30 lost pairs."""
    edits = counted([(source, 0.0) for source in range(60)])
    worse = refused_pairs([(source, -1.0) for source in range(30)], [(source, -1.0) for source in range(20, 60)])
    bounds = effect_bounds(edits, worse, MostValid(0.5, 0.75, "checks"), 1)
    assert bounds.low == pytest.approx(-45 / 2 / 60)
    assert (bounds.high, bounds.share, bounds.lost_share) == (0, 0.5, 0.75)


@pytest.mark.parametrize(
    ("score", "reference", "low", "high"),
    [(None, None, -0.25, 0.25), (0.0, None, -0.25, 0.0), (1.0, None, 0.0, 0.25), (None, 1.0, -0.25, 0.0)],
)
def test_an_outcome_that_is_not_known_may_be_anything(
    score: float | None, reference: float | None, low: float, high: float
) -> None:
    edits = counted([(source, 0.0) for source in range(20)])
    least, most = possible_difference(score, reference)
    refused = Refused(np.arange(10), np.full(10, least), np.full(10, most), np.zeros(10, bool))
    bounds = effect_bounds(edits, refused, MostValid(1.0, 1.0, "none"), 1)
    assert (bounds.low, bounds.high) == pytest.approx((low, high))
    assert bounds.interval is not None
    assert bounds.interval.low < bounds.low
    assert bounds.interval.high > bounds.high


def test_the_order_of_an_adaptive_jobs_images_does_not_change_the_bounds() -> None:
    """Their number was not fixed beforehand, so an interval for a fixed number would not cover."""
    edits = counted([(source, -1.0 if source < 8 else 0.0) for source in range(20)])
    order = np.random.default_rng(2).permutation(20)
    sizes = None if edits.sizes is None else edits.sizes[order]
    adaptive = replace(edits, group=order, correct=edits.correct[order], sizes=sizes, left=np.arange(40.0, 20, -1))
    refused = refused_pairs([(source, -1.0) for source in range(20)], [])
    bounds, of_adaptive = (effect_bounds(pairs, refused, MostValid(0.5, 1.0, "none"), 1) for pairs in (edits, adaptive))
    assert (of_adaptive.low, of_adaptive.high) == pytest.approx((bounds.low, bounds.high))
    assert bounds.interval is not None
    assert of_adaptive.interval is None


def test_without_refused_edits_the_bounds_are_the_estimate() -> None:
    edits = counted([(source, -1.0) for source in range(20)])
    bounds = effect_bounds(edits, refused_pairs([], []), MostValid(1.0, 1.0, "none"), 1)
    assert (bounds.low, bounds.high, bounds.refused) == (-1, -1, 0)


def test_the_share_of_valid_refused_edits_covers_the_one_that_made_the_counts() -> None:
    random = np.random.default_rng(3)
    valid = random.random(4_000) < 0.5
    accepted = random.random(4_000) < np.where(valid, 0.8, 0.02)
    errors = CheckErrors(valid=400, valid_accepted=320, invalid=400, invalid_accepted=8)
    truth = (valid & ~accepted).sum() / (~accepted).sum()
    assert truth < most_valid_refused(errors, Screened(np.arange(4_000), accepted), 1) < truth + 0.1
    blind = CheckErrors(valid=50, valid_accepted=40, invalid=50, invalid_accepted=48)
    assert most_valid_refused(blind, Screened(np.arange(4_000), accepted), 1) == 1
    assert valid[accepted].mean() < most_valid_accepted(errors, Screened(np.arange(4_000), accepted), 1) < 1
    assert most_valid_accepted(blind, Screened(np.arange(4_000), accepted), 1) == 1


@pytest.mark.parametrize("calibrated", [False, True])
def test_bounds_contain_the_truth_where_checks_refuse_failures(calibrated: bool) -> None:
    """The estimate is 10 points too mild and its interval misses; the bounds of each table contain its truth."""
    row = mean_row(Refusals(100, 0.3, 0.9, 0.1, 0.5, calibrated), 12)
    assert row.bias > 0.07
    assert row.truth_in_plain_interval < 0.8
    assert row.sample_in_bounds >= 0.9
    assert row.truth_in_interval >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("calibrated", [False, True])
def test_bounds_contain_the_truth_where_arms_are_lost_on_failures(calibrated: bool) -> None:
    """The checks refuse 2 % of valid edits: few refused edits are valid, but all lost pairs are."""
    row = mean_row(Refusals(150, 0.3, 0.6, 0.02, 0.02, calibrated, 0.1, 0.5), 12)
    assert row.bias > 0.07
    assert row.sample_in_bounds >= 0.9
    assert row.truth_in_bounds >= 0.9
    assert row.truth_in_interval >= 0.9


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_bounds_contain_the_truth_where_arms_are_refused_because_they_are_broken(drop: float) -> None:
    """The model fails on most broken arms. Taken as valid ones, they would hide a loss; their outcome is a range."""
    row = mean_row(Refusals(100, drop, 0.9, 0.1, 0.5, False, broken_arms=0.2), 12)
    assert row.sample_in_bounds == 1
    assert row.truth_in_bounds == 1
