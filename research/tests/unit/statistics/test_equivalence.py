"""Equivalence tests over source images, and their error rate."""

from __future__ import annotations

import numpy as np
import pytest

from research.statistics.equivalence import ALPHA, equivalence


def test_many_equal_sources_are_equivalent_and_few_are_not() -> None:
    assert equivalence(np.zeros(1_000), 0.01).equivalent
    assert not equivalence(np.zeros(40), 0.01).equivalent
    with pytest.raises(ValueError, match="two source images"):
        equivalence(np.zeros(1), 0.01)


def test_the_interval_agrees_with_the_test() -> None:
    random = np.random.default_rng(0)
    for share in (0.0, 0.005, 0.02, 0.2):
        result = equivalence(-(random.random(1_000) < share).astype(float), 0.01)
        assert result.equivalent == (result.low > -0.01 and result.high < 0.01)
        assert result.low < result.mean < result.high


def test_a_difference_of_the_margin_is_called_equivalent_as_rarely_as_promised() -> None:
    random = np.random.default_rng(1)
    runs = 2_000
    shares = np.array([0.96, 0.025, 0.015])  # equal, worse, better: one point worse on average
    differences_of_runs = random.choice([0.0, -1.0, 1.0], size=(runs, 1_500), p=shares)
    wrong = np.mean([equivalence(differences, 0.01).equivalent for differences in differences_of_runs])
    assert wrong <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / runs)
