"""Rates of independent trials with Wilson's interval, as numbers and in words."""

from __future__ import annotations

from scipy.stats import norm

from gateway.analysis.certainty import LEVEL, score_interval
from shared.schemas.effects import Rate


def wilson(count: int, n: int) -> Rate:
    """A rate of independent trials with its Wilson score 95 % interval (0 to 1 for n = 0).

    With 1 to 3 hits (misses) the end near 0 (1) is the Poisson bound instead (Brown, Cai & DasGupta 2001, 4.1.1).
    """
    if not 0 <= count <= n:
        raise ValueError(f"{count} of {n} is no rate")
    if n == 0:
        return Rate(count=0, n=0, value=None, low=0.0, high=1.0)
    low, high = score_interval(count / n, n, float(norm.ppf((1 + LEVEL) / 2)))
    return Rate(count=count, n=n, value=count / n, low=low, high=high)


def rate_text(count: int, n: int) -> str:
    """A rate as "93.8% (30 of 32; 80% to 98%)", with its Wilson interval."""
    rate = wilson(count, n)
    if rate.value is None:
        return "none"
    return f"{rate.value:.1%} ({count} of {n}; {rate.low:.0%} to {rate.high:.0%})"


def fraction_text(count: int, n: int) -> str:
    """A rate as "180 / 200 (90.0%, 85.1% to 93.4%)", with its Wilson interval; "0 / 0" for none."""
    rate = wilson(count, n)
    if rate.value is None:
        return "0 / 0"
    return f"{count} / {n} ({rate.value:.1%}, {rate.low:.1%} to {rate.high:.1%})"
