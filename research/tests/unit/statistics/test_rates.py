"""Rates and their intervals, against SciPy and the summed binomial distribution."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from research.statistics.rates import fraction_text, rate_text, wilson


@pytest.mark.parametrize(("count", "n"), [(0, 1), (1, 1), (0, 7), (7, 7), (5, 11), (498, 1000), (4, 100_000)])
def test_wilson_equals_that_of_scipy(count: int, n: int) -> None:
    rate = wilson(count, n)
    low, high = binomtest(count, n).proportion_ci(0.95, method="wilson")
    assert rate.value == count / n
    assert (rate.low, rate.high) == pytest.approx((low, high), abs=1e-9)


def test_a_rate_of_nothing_is_unknown() -> None:
    rate = wilson(0, 0)
    assert (rate.value, rate.low, rate.high) == (None, 0.0, 1.0)
    with pytest.raises(ValueError, match="no rate"):
        wilson(3, 2)


@pytest.mark.parametrize("n", [12, 40, 100])
def test_wilson_with_its_mended_ends_covers_rare_events_too(n: int) -> None:
    """Unmended, one hit of n misses rates below 0.18 / n: 84 %."""
    rates = [wilson(count, n) for count in range(n + 1)]
    for p in np.linspace(0.0005, 0.5, 400):
        covered = [rate.low <= p <= rate.high for rate in rates]
        assert binom.pmf(np.arange(n + 1), n, p)[covered].sum() > 0.91


def test_rates_in_words_have_the_interval() -> None:
    assert fraction_text(180, 200) == "180 / 200 (90.0%, 85.1% to 93.4%)"
    assert fraction_text(0, 0) == "0 / 0"
    assert rate_text(180, 200) == "90.0% (180 of 200; 85% to 93%)"
    assert rate_text(0, 0) == "none"
