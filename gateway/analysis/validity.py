"""The effect among valid counterfactuals, corrected for checks that accept invalid ones and reject valid ones.

    observed effect = valid share · effect among valid + (1 − valid share) · effect among invalid

Accepted counterfactuals are a contaminated sample (Horowitz & Manski 1995). The valid share follows from the acceptance
rate and the error rates of the checks (Rogan & Gladen 1978). The effect of the invalid ones is unknown and may take any
value in −1 … 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import effect_interval, effective_trials
from gateway.analysis.effects import Differences, Floats, Integers
from gateway.analysis.limits import BEYOND, LEAST_OF_CLASS
from shared.schemas.effects import Cell, CheckErrors, Interval, Pool, ValidEffect

DRAWS = 20_000
LEAST_OF_EACH = 10  # valid ones, and as many invalid ones, of a class whose own errors are used
SHARE_OF_ERROR = 0.2  # share of the interval's error that is spent on the valid share


@dataclass(frozen=True, slots=True)
class Screened:
    """The rendered edits of a cell, accepted or not: the group of source images and the verdict of each."""

    group: Integers
    accepted: NDArray[np.bool_]


def breakdown_point(bound: float) -> float:
    """The largest share (0 … 1) of invalid images for which a finding still lies beyond 5 points.

    `bound` is the end of its interval nearest to 0, in −1 … 1. In the worst case the model loses (gains) every invalid
    image because it is invalid. A share ε of them leaves (|bound| − ε) / (1 − ε).
    """
    return max(0.0, (abs(bound) - BEYOND) / (1 - BEYOND))


def errors_of(factor: str, errors: Mapping[str, CheckErrors]) -> CheckErrors | None:
    """The errors of the checks for edits of a factor, or those of `default` if the factor was not measured."""
    return errors.get(factor, errors.get("default"))


def is_measured(errors: CheckErrors) -> bool:
    """Whether the errors on a class rest on 30 judged counterfactuals, 10 of them valid and 10 invalid."""
    return errors.valid + errors.invalid >= LEAST_OF_CLASS and min(errors.valid, errors.invalid) >= LEAST_OF_EACH


def pooled_errors(
    cell: Cell, errors: Mapping[str, CheckErrors], classes: Mapping[str, CheckErrors]
) -> tuple[CheckErrors | None, Pool]:
    """The errors of the checks for a cell, and what they are pooled over.

    They are those of its class if these are measured (`is_measured`). Otherwise those of its factor over all classes,
    or of all factors.
    """
    class_errors = classes.get(cell.label)
    if class_errors is not None and is_measured(class_errors):
        return class_errors, "class"
    return errors_of(cell.factor, errors), "factor" if cell.factor in errors else "all"


def valid_shares(errors: CheckErrors, screened: Screened, seed: int) -> Floats:
    """Draws (20,000) of the share of accepted edits that is valid, ascending, in 0 … 1.

    With a = accepted / rendered, s = P(accepted | valid), f = P(accepted | invalid): s (a − f) / (a (s − f)), each of
    the three drawn from its posterior under Jeffreys' prior; 0 if the checks are uninformative (s ≤ f).
    """
    return np.sort(_valid_shares(errors, screened, seed, uninformative=0.0))


def _valid_shares(errors: CheckErrors, screened: Screened, seed: int, uninformative: float) -> Floats:
    acceptance, sensitivity, false_positive_rate = _draw(errors, screened, seed)
    gap = sensitivity - false_positive_rate
    valid = (acceptance - false_positive_rate) / np.where(gap > 0, gap, np.nan)
    return np.clip(np.where(gap > 0, sensitivity * valid / acceptance, uninformative), 0, 1)


def most_valid_refused(errors: CheckErrors, screened: Screened, seed: int) -> float:
    """The largest share (0 … 1) of a cell's refused edits that may be valid: the 97.5 % quantile of 20,000 draws.

    (1 − s) (a − f) / ((1 − a) (s − f)), in the terms of `valid_shares`; 1 if the checks are uninformative.
    """
    acceptance, sensitivity, false_positive_rate = _draw(errors, screened, seed)
    gap = sensitivity - false_positive_rate
    valid = np.clip((acceptance - false_positive_rate) / np.where(gap > 0, gap, np.nan), 0, 1)
    shares = np.where(gap > 0, (1 - sensitivity) * valid / (1 - acceptance), 1.0)
    return float(np.quantile(np.clip(shares, 0, 1), 0.975))


def most_valid_accepted(errors: CheckErrors, screened: Screened, seed: int) -> float:
    """The largest share (0 … 1) of a cell's accepted edits that may be valid: the 97.5 % quantile of 20,000 draws.

    The draws are those of `valid_shares`, but 1 if the checks are uninformative.
    """
    return float(np.quantile(_valid_shares(errors, screened, seed, uninformative=1.0), 0.975))


def _draw(errors: CheckErrors, screened: Screened, seed: int) -> tuple[Floats, Floats, Floats]:
    """Draws (20,000) of the acceptance rate a, of P(accepted | valid) and of P(accepted | invalid)."""
    random = np.random.default_rng(seed)

    def draw(hits: float, n: float) -> Floats:
        return random.beta(hits + 0.5, n - hits + 0.5, DRAWS)

    trials = effective_trials(screened.accepted, screened.group)
    acceptance = draw(trials * float(screened.accepted.mean()), trials)
    sensitivity = draw(errors.valid_accepted, errors.valid)
    return acceptance, sensitivity, draw(errors.invalid_accepted, errors.invalid)


def among_valid(
    differences: Differences, level: float, errors: CheckErrors, screened: Screened, seed: int
) -> ValidEffect:
    """`effect_among_valid` with the valid share from the checks' errors and the verdicts of a cell."""
    return effect_among_valid(differences, level, valid_shares(errors, screened, seed), seed)


def effect_among_valid(
    differences: Differences,
    level: float,
    shares: Floats,
    seed: int,
    source: Literal["checks", "reviews"] = "checks",
    pool: Pool = "all",
    one_sided: bool = False,
) -> ValidEffect:
    """The effect among valid counterfactuals, from per-source differences of the accepted ones.

    `shares`: draws (20,000) of their valid share, ascending; `source`: the origin of the shares; `pool`: what they are
    pooled over. The interval at `level` spends a fifth of its error on the valid share
    (one-sided) and the rest on the observed effect (Bonferroni), and covers all effects that both allow. `one_sided`:
    the end nearer to 0 alone has this level, as in a finding's own interval.
    """
    error, sides = 1 - level, 2 if one_sided else 1
    observed = effect_interval(differences, 1 - sides * (1 - SHARE_OF_ERROR) * error, seed)
    share = float(shares[DRAWS // 2])
    least = float(shares[math.floor(SHARE_OF_ERROR * error * DRAWS)])
    low, high = _possible_range(observed.low, least)[0], _possible_range(observed.high, least)[1]
    mean = float(differences.correct.mean())
    ends = _possible_range(mean, share)
    estimate = max(0.0, ends[0]) if mean > 0 else min(0.0, ends[1])
    return ValidEffect(
        valid=share,
        valid_low=least,
        estimate=estimate,
        interval=Interval(low=low, high=high, level=level, kind=observed.kind),
        stands=high < -BEYOND or low > BEYOND,
        source=source,
        pool=pool,
    )


def _possible_range(observed: float, share: float) -> tuple[float, float]:
    """The smallest and largest effect among valid counterfactuals, given an observed effect and a valid share."""
    if share <= 0:
        return -1.0, 1.0
    return max(-1.0, (observed - (1 - share)) / share), min(1.0, (observed + (1 - share)) / share)
