"""Two samples of a job's own images: those that show a value of a factor, and those that do not."""

from __future__ import annotations

import math

import numpy as np

from gateway.analysis.certainty import LEVEL
from gateway.analysis.effects import Floats
from shared.schemas.estimates import Interval, Rate


def value_probabilities(images: Floats, values: Floats, scale: float) -> Floats:
    """Zero-shot probabilities, images × values, of images × width and values × width of unit vectors.

    `scale` multiplies cosines before the softmax (arXiv 2103.00020, section 3.1).
    """
    logits = scale * (images @ values.T)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def difference_interval(first: Rate, second: Rate) -> Interval | None:
    """The 95 % interval of the difference of two independent rates, first minus second; None if either has n = 0.

    Newcombe's hybrid of the intervals of the rates (1998, method 10). If groups have images in both samples, which
    makes the rates alike, it is wider than it needs to be.
    """
    if first.value is None or second.value is None:
        return None
    difference = first.value - second.value
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    low, high = max(-1.0, difference - below), min(1.0, difference + above)
    return Interval(low=low, high=high, level=LEVEL, kind="newcombe")
