"""Tables on which the bounds over refused valid pairs should contain the truth.

The truth is known: checks refuse valid edits or valid arms, and refuse those on which the model fails more often
(or less often) than the others, so that the estimate is biased. The truth is the effect over all valid edits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gateway.analysis.bounds import MostValid, Refused, effect_bounds
from gateway.analysis.certainty import LEVEL, mean_interval
from gateway.analysis.effects import Differences, Units
from gateway.analysis.validity import Screened, most_valid_accepted, most_valid_refused
from shared.schemas.effects import CheckErrors
from shared.seeds import derive_seed

SIBLINGS = 2
RATE = 0.95
CALIBRATED = 300
ON_INVALID = 0.3  # accuracy on invalid images


@dataclass(frozen=True, slots=True)
class Refusals:
    """One setting: images, true drop, share of valid edits, and P(refused | valid) where the model is right or wrong.

    `calibrated`: the checks' errors were measured on 300 valid and 300 invalid images; otherwise every refused pair may
    be valid. `lost_if_right`, `lost_if_wrong`: P(valid arm refused) where the model is right or wrong on the edit.
    `broken_arms`: P(arm invalid) by source image; the checks refuse them, and the model is right on 30 % of them.
    """

    sources: int
    drop: float
    valid: float
    refused_if_right: float
    refused_if_wrong: float
    calibrated: bool
    lost_if_right: float = field(default=0.0, repr=False)
    lost_if_wrong: float = field(default=0.0, repr=False)
    broken_arms: float = field(default=0.0, repr=False)


class RefusalRow(NamedTuple):
    """Bias of the estimate, and how often bounds and intervals contain the truth, over the tables."""

    bias: float
    sample_in_bounds: float
    truth_in_bounds: float
    truth_in_interval: float
    truth_in_plain_interval: float


def simulate_refusals(setting: Refusals, seed: int) -> RefusalRow:
    """The bounds of one random cell of a setting."""
    random = np.random.default_rng(seed)
    source = np.repeat(np.arange(setting.sources), SIBLINGS)
    null = (random.random(setting.sources) < RATE)[source]
    valid = random.random(len(source)) < setting.valid
    right = np.where(valid, random.random(len(source)) < RATE - setting.drop, random.random(len(source)) < ON_INVALID)
    refusal = np.where(right, setting.refused_if_right, setting.refused_if_wrong)
    accepted = valid & (random.random(len(source)) >= refusal)
    difference = right.astype(float) - null
    most_valid = _most_valid(setting, Screened(source, accepted), random, seed)
    refused_arm = random.random(len(source)) < np.where(right, setting.lost_if_right, setting.lost_if_wrong)
    broken = (random.random(setting.sources) < setting.broken_arms)[source]
    observed = np.where(broken, right.astype(float) - (random.random(setting.sources) < ON_INVALID)[source], difference)
    refused_arm |= broken
    both_accepted = accepted & ~refused_arm
    counted = _differences(source[both_accepted], difference[both_accepted])
    low, high = (np.where(refused_arm, end, observed)[~both_accepted] for end in (right - 1.0, right.astype(float)))
    bounds = effect_bounds(
        counted, Refused(source[~both_accepted], low, high, accepted[~both_accepted]), most_valid, seed
    )
    plain = mean_interval(counted.correct, LEVEL, seed)
    interval = bounds.interval or plain
    sample = float(_differences(source[valid], difference[valid]).correct.mean())
    truth = -setting.drop
    return RefusalRow(
        float(counted.correct.mean()) - truth,
        bounds.low - 1e-9 <= sample <= bounds.high + 1e-9,
        bounds.low <= truth <= bounds.high,
        interval.low <= truth <= interval.high,
        plain.low <= truth <= plain.high,
    )


def _differences(source: np.ndarray, difference: np.ndarray) -> Differences:
    units = Units.of(source, source)
    means = units.means(difference)
    return Differences(units.group, means, means, len(source), sizes=units.rows_of_group)


def _most_valid(setting: Refusals, screened: Screened, random: np.random.Generator, seed: int) -> MostValid:
    errors = _errors(setting, random)
    if not setting.calibrated:
        return MostValid(1.0, 1.0, "none")
    return MostValid(most_valid_refused(errors, screened, seed), most_valid_accepted(errors, screened, seed), "checks")


def _errors(setting: Refusals, random: np.random.Generator) -> CheckErrors:
    """A calibration set of the same checks; no invalid edit is accepted."""
    right = RATE - setting.drop
    refused = right * setting.refused_if_right + (1 - right) * setting.refused_if_wrong
    accepted = int(random.binomial(CALIBRATED, 1 - refused))
    return CheckErrors(valid=CALIBRATED, valid_accepted=accepted, invalid=CALIBRATED, invalid_accepted=0)


def mean_row(setting: Refusals, tables: int) -> RefusalRow:
    """The means over the tables of a setting."""
    rows = [simulate_refusals(setting, derive_seed("refusals", repr(setting), table)) for table in range(tables)]
    return RefusalRow(*np.mean(np.array(rows, float), axis=0).tolist())
