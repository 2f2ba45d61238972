"""A paired test of equivalence over source images: do two conditions differ by less than a margin?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from gateway.analysis.effects import Floats

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Equivalence:
    """The mean of `n` paired differences with its 90 % interval, and its test against a margin (all in −1 … 1).

    `p_value` is the larger p-value of the two one-sided tests; `equivalent` means p ≤ 5 %: the interval lies within
    ± `margin`.
    """

    n: int
    mean: float
    low: float
    high: float
    margin: float
    p_value: float

    @property
    def equivalent(self) -> bool:
        """Whether the test rejects a difference of the margin or more in both directions."""
        return self.p_value <= ALPHA


def equivalence(differences: Floats, margin: float) -> Equivalence:
    """Two one-sided paired t tests (Schuirmann 1987) of |mean difference| ≥ `margin`.

    `differences`: one per source image, in −1 … 1. The spread includes one pseudo-observation of −1 and one of +1,
    because a few dozen sources without a difference do not prove equivalence. Raises ValueError for fewer than two.
    """
    n = len(differences)
    if n < 2:
        raise ValueError(f"a test of equivalence needs at least two source images, not {n}")
    mean = float(differences.mean())
    error = float(np.concatenate([differences, [-1.0, 1.0]]).std(ddof=1)) / math.sqrt(n)
    reach = float(t.ppf(1 - ALPHA, n - 1)) * error
    above, below = (float(t.sf((margin + side * mean) / error, n - 1)) for side in (1, -1))
    return Equivalence(n, mean, max(-1.0, mean - reach), min(1.0, mean + reach), margin, max(above, below))
