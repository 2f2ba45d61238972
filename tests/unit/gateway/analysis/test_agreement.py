"""Agreement against published values and known truths; control items; consensus; mean ratings."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.agreement import alpha, alpha_interval, consensus, mean_rating, score_controls
from gateway.analysis.effects import Integers


def test_alpha_is_that_of_the_published_example() -> None:
    """Krippendorff (2011), "Computing Krippendorff's alpha-reliability", section C: nominal 0.743, ordinal 0.815."""
    ratings = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
        [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
    ]
    counts = np.array(
        [[sum(rater[unit] == value for rater in ratings) for value in range(1, 6)] for unit in range(12)], np.int64
    )
    assert alpha(counts, "nominal") == pytest.approx(0.743, abs=5e-4)
    assert alpha(counts, "ordinal") == pytest.approx(0.815, abs=5e-4)


@pytest.mark.parametrize("counts", [[], [[5, 0], [5, 0]], [[1, 0], [0, 1]]])
def test_alpha_is_undefined_without_disagreement_or_pairs(counts: list[list[int]]) -> None:
    assert alpha(np.array(counts, np.int64).reshape(-1, 2), "nominal") is None


def test_full_agreement_is_one_and_chance_is_zero() -> None:
    assert alpha(np.array([[5, 0], [0, 5]] * 10), "nominal") == pytest.approx(1)
    random = np.random.default_rng(0)
    guesses = random.multinomial(5, [0.5, 0.5], 4_000)
    assert alpha(guesses, "nominal") == pytest.approx(0, abs=0.02)


def test_the_interval_of_alpha_keeps_the_items_of_a_source_image_together() -> None:
    random = np.random.default_rng(1)
    yes = random.binomial(5, np.where(random.random(60) < 0.5, 0.95, 0.05))
    counts = np.repeat(np.stack([yes, 5 - yes], axis=1), 4, axis=0)
    alone = _interval(counts, np.arange(240))
    together = _interval(counts, np.arange(240) // 4)
    assert together[1] - together[0] > 1.5 * (alone[1] - alone[0])
    assert alpha_interval(counts[:16], "nominal", np.arange(16) // 4, seed=0) is None, "four source images"


def _interval(counts: Integers, group: Integers) -> tuple[float, float]:
    interval = alpha_interval(counts, "nominal", group, seed=0)
    assert interval is not None
    return interval


def test_controls_are_counted_where_rated() -> None:
    nan = np.nan
    scores = score_controls(np.array([[1, 1, 0], [1, nan, 0], [nan, nan, nan]]), np.array([False, False, False]))
    assert scores.correct.tolist() == [2, 1, 0]
    assert scores.n.tolist() == [3, 2, 0]


def test_a_null_arm_that_most_raters_find_invalid_judges_nobody() -> None:
    uncertain = np.array([False, True, True])
    lost = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 1, 1]], float)
    scores = score_controls(lost, uncertain)
    assert scores.dropped.tolist() == [False, False, True]
    assert scores.correct.tolist() == [2, 2, 1, 2]
    yes_to_all = np.array([[0, 1, 1]] * 9, float)
    scores = score_controls(np.concatenate([lost, yes_to_all]), uncertain)
    assert scores.dropped.tolist() == [False, False, True], "judged by those who find the wrong class wrong"
    assert scores.correct.tolist() == [2, 2, 1, 2] + [1] * 9
    assert not score_controls(yes_to_all, uncertain).dropped.any()
    assert not score_controls(lost[:2], uncertain).dropped.any(), "two raters are too few"


def test_consensus_needs_four_of_five() -> None:
    yes, no = np.array([5, 4, 3, 1, 0, 0]), np.array([0, 1, 2, 4, 3, 0])
    answers = np.array([5, 5, 5, 5, 5, 0])
    assert consensus(yes, no, answers, 0.8).tolist() == [1, 1, 0, -1, 0, 0], "the last but one: two cannot tell"


def test_the_mean_of_ratings_weighs_source_images_equally() -> None:
    means, group = np.array([5.0, 5.0, 5.0, 1.0]), np.array([0, 0, 0, 1])
    estimate = mean_rating(means, group, seed=0)
    assert estimate is not None
    assert estimate.value == 3.0
    assert 1 <= estimate.low < 3 < estimate.high <= 5
    assert mean_rating(means[:3], group[:3], seed=0) is None
    random = np.random.default_rng(2)
    covered = 0
    for seed in range(60):
        sample = np.clip(random.normal(3.6, 0.8, 60), 1, 5)
        interval = mean_rating(sample, np.arange(60), seed)
        assert interval is not None
        covered += interval.low <= 3.59 <= interval.high
        assert interval.high - interval.low < 0.8
    assert covered >= 54
