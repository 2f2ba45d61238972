"""Dose and return: whether an effect grows with the dose of its edits, and whether it goes when the edit is undone."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gateway.analysis.certainty import LEVEL, mean_interval
from gateway.analysis.effects import Floats
from gateway.analysis.limits import BEYOND, LEAST_SOURCES
from shared.schemas.effects import Interval

Trend = Literal["grows", "shrinks", "no trend established", "too few images"]
Return = Literal["returns", "returns in part", "does not return", "undecided", "too few images"]


def interval_of(values: Floats, seed: int) -> Interval | None:
    """The 95 % interval of the mean of n values in −1 … 1, one for each source image or group; None under 12."""
    return mean_interval(values, LEVEL, seed) if len(values) >= LEAST_SOURCES else None


def dose_trend(effects: Floats, doses: Floats, seed: int) -> tuple[float, Interval | None]:
    """The mean change of the effect from the smallest to the largest dose, and its 95 % interval (None under 12 rows).

    `effects`: source images (or groups) × doses, each in −1 … 1. Each row has a least-squares line over the doses,
    whose rise is one number. The rows are independent and the doses of a row are not, so the interval is that of the
    mean of these numbers. Page's test would take the doses of a row for exchangeable, which binary outcomes with ties
    and groups of different sizes are not, and it gives no interval.
    """
    centred = doses - doses.mean()
    weights = centred / (centred @ centred) * (doses.max() - doses.min())
    reach = float(np.abs(weights).sum())  # the largest possible rise
    rises = effects @ weights
    unit = interval_of(rises / reach, seed)
    if unit is None:
        return float(rises.mean()), None
    scaled = unit.model_copy(update={"low": reach * unit.low, "high": reach * unit.high})
    return float(rises.mean()), scaled


def trend_verdict(interval: Interval | None, effect: float) -> Trend:
    """`interval` of the trend, in points of 0 … 1; `effect` is that at full dose, whose sign says what growth is."""
    if interval is None:
        return "too few images"
    low, high = (-interval.high, -interval.low) if effect < 0 else (interval.low, interval.high)
    return "grows" if low > 0 else "shrinks" if high < 0 else "no trend established"


def return_verdict(remaining: Interval | None, regained: Interval | None) -> Return:
    """`remaining`: accuracy with the edit undone minus that on source images; `regained`: minus that at full dose."""
    if remaining is None or regained is None:
        return "too few images"
    loss, gain = remaining.high < -BEYOND, regained.low > BEYOND
    if loss:
        return "returns in part" if gain else "does not return"
    return "returns" if gain else "undecided"
