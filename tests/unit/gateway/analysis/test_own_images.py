"""Comparison of two samples of own images."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.certainty import score_interval
from gateway.analysis.own_images import difference_interval, value_probabilities
from shared.schemas.estimates import Rate


def wilson(count: int, n: int) -> Rate:
    low, high = score_interval(count / n, n, 1.959964)
    return Rate(count=count, n=n, value=count / n, low=low, high=high)


def test_the_interval_is_newcombes() -> None:
    """56 of 70 and 48 of 80: Newcombe 1998, table II, example (a), method 10."""
    interval = difference_interval(wilson(56, 70), wilson(48, 80))
    assert interval is not None
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.0524, 0.3339)


def test_the_interval_covers_the_difference() -> None:
    random, covered = np.random.default_rng(1), 0
    for _ in range(2_000):
        first, second = int(random.binomial(12, 0.3)), int(random.binomial(60, 0.9))
        interval = difference_interval(wilson(first, 12), wilson(second, 60))
        assert interval is not None
        covered += interval.low <= -0.6 <= interval.high
    assert covered / 2_000 > 0.925


def test_an_empty_sample_has_no_difference() -> None:
    assert difference_interval(Rate(count=0, n=0, value=None, low=0.0, high=1.0), wilson(3, 4)) is None


def test_probabilities_follow_the_cosines() -> None:
    images, values = np.eye(3)[:2], np.eye(3)
    probabilities = value_probabilities(images, values, 100.0)
    assert probabilities.shape == (2, 3)
    assert probabilities.argmax(axis=1).tolist() == [0, 1]
    assert probabilities.sum(axis=1) == pytest.approx(1.0)
