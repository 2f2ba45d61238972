"""The effect among valid counterfactuals, although checks accept some invalid ones and reject some valid ones.

    observed effect = valid share · effect among valid + (1 − valid share) · effect among invalid

Accepted counterfactuals are a contaminated sample (Horowitz & Manski 1995). The valid share follows from how many of
the rendered ones the checks accepted and from the checks' error rates (Rogan & Gladen 1978); the effect
of the invalid ones is unknown, so it may be anything between −1 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import mean_interval, trials_worth
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.limits import BEYOND
from shared.schemas.results import CheckErrors, Interval, ValidEffect

DRAWS = 20_000
SHARE_OF_ERROR = 0.2  # share of the interval's error that is spent on the valid share


@dataclass(frozen=True, slots=True)
class Screened:
    """The rendered edits of a cell, accepted or not: the group of source images and the verdict of each."""

    group: Integers
    accepted: NDArray[np.bool_]


def breakdown_point(bound: float) -> float:
    """The largest share (0 … 1) of invalid images under which a finding still lies beyond 5 points.

    `bound` is the end of its interval that is nearest to no effect, in −1 … 1. The worst case: the model
    loses (gains) every invalid image because it is invalid. A share ε of them leaves (|bound| − ε) / (1 − ε).
    """
    return max(0.0, (abs(bound) - BEYOND) / (1 - BEYOND))


def errors_of(factor: str, errors: Mapping[str, CheckErrors]) -> CheckErrors | None:
    """The errors of the checks for edits of a factor, or those of `default` if the factor was not measured."""
    return errors.get(factor, errors.get("default"))


def valid_shares(errors: CheckErrors, screened: Screened, seed: int) -> Floats:
    """Draws (20,000) of the share of accepted edits that is valid, ascending, in 0 … 1.

    With a = accepted / rendered, s = P(accepted | valid), f = P(accepted | invalid): s (a − f) / (a (s − f)), each of
    the three drawn from its posterior under Jeffreys' prior; 0 if the checks are uninformative (s ≤ f).
    """
    random = np.random.default_rng(seed)

    def drawn(hits: float, n: float) -> Floats:
        return random.beta(hits + 0.5, n - hits + 0.5, DRAWS)

    worth = trials_worth(screened.accepted, screened.group)
    accepted = drawn(worth * float(screened.accepted.mean()), worth)
    sensitivity = drawn(errors.valid_accepted, errors.valid)
    let_through = drawn(errors.invalid_accepted, errors.invalid)
    gap = sensitivity - let_through
    shares = sensitivity * (accepted - let_through) / (accepted * np.where(gap > 0, gap, np.inf))
    return np.sort(np.clip(shares, 0, 1))


def among_valid(correct: Floats, level: float, errors: CheckErrors, screened: Screened, seed: int) -> ValidEffect:
    """`effect_among_valid` with the share that follows from the checks' errors and the verdicts of a cell."""
    return effect_among_valid(correct, level, valid_shares(errors, screened, seed), seed)


def effect_among_valid(
    correct: Floats, level: float, shares: Floats, seed: int, source: Literal["checks", "reviews"] = "checks"
) -> ValidEffect:
    """The effect among valid counterfactuals, from per-source differences of the accepted ones.

    `shares`: draws (20,000) of the share of them that is valid, ascending; `source` says where that is known from.
    The interval at `level` gives a fifth of its error to the valid share (one-sided) and the rest to the observed
    effect (Bonferroni), and takes the worst of what lies in both.
    """
    error = 1 - level
    observed = mean_interval(correct, 1 - (1 - SHARE_OF_ERROR) * error, seed)
    share = float(shares[DRAWS // 2])
    least = float(shares[math.floor(SHARE_OF_ERROR * error * DRAWS)])
    low, high = _possible(observed.low, least)[0], _possible(observed.high, least)[1]
    mean = float(correct.mean())
    ends = _possible(mean, share)
    estimate = max(0.0, ends[0]) if mean > 0 else min(0.0, ends[1])
    return ValidEffect(
        valid=share,
        valid_low=least,
        estimate=estimate,
        interval=Interval(low=low, high=high, level=level, kind=observed.kind),
        stands=high < -BEYOND or low > BEYOND,
        source=source,
    )


def _possible(observed: float, share: float) -> tuple[float, float]:
    """The smallest and largest effect among valid ones that an observed effect and a valid share allow."""
    if share <= 0:
        return -1.0, 1.0
    return max(-1.0, (observed - (1 - share)) / share), min(1.0, (observed + (1 - share)) / share)
