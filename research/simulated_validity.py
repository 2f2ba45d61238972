"""Simulate cells in which a known share of counterfactuals is invalid, screened by checks with known errors.

The analysis does not know the checks' error rates. It gets a calibration set sampled from them, as a user would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import LEVEL, mean_interval
from gateway.analysis.effects import Differences
from gateway.analysis.limits import BEYOND
from gateway.analysis.validity import Screened, among_valid, breakdown_point
from shared.schemas.effects import CheckErrors

Invalid = Literal["lost", "unchanged", "coin"]
SIBLINGS = 2
RATE = 0.95


@dataclass(frozen=True, slots=True)
class Contaminated:
    """One point of the grid. `valid`: share of rendered edits; `let_through`, `refused`: the checks' error rates.

    `invalid`: the model's prediction on invalid counterfactuals is wrong (`lost`), the same as on the null arm
    (`unchanged`), or random (`coin`). `calibrated`: the numbers of valid and invalid images in the calibration set.
    """

    sources: int
    valid: float
    let_through: float
    refused: float
    drop: float
    invalid: Invalid
    calibrated: int


@dataclass(frozen=True, slots=True)
class EffectOutcome:
    """Whether the interval contains the effect among valid counterfactuals (`covered`), its width, the estimate's bias.

    A negative bias overstates the effect. `breakdown_holds`: for an interval beyond 5 points whose true invalid share
    is within its breakdown point, whether the effect among valid counterfactuals is beyond 5 points too; otherwise
    None.
    """

    setting: Contaminated
    covered: bool
    width: float
    bias: float
    breakdown_holds: bool | None


def contaminated_grid() -> Iterator[Contaminated]:
    """All settings."""
    invalids: tuple[Invalid, ...] = ("lost", "unchanged", "coin")
    for sources in (20, 40, 100):
        for valid in (0.5, 0.8):
            for let_through in (0.02, 0.1):
                for drop in (0.0, 0.3, 0.7):
                    for invalid in invalids:
                        for calibrated in (60, 300):
                            yield Contaminated(sources, valid, let_through, 0.15, drop, invalid, calibrated)


def simulate_contaminated(setting: Contaminated, seed: int) -> EffectOutcome:
    """The analysis of one random cell of a setting."""
    random = np.random.default_rng(seed)
    source = np.repeat(np.arange(setting.sources), SIBLINGS)
    valid = random.random(len(source)) < setting.valid
    accepted = random.random(len(source)) < np.where(valid, 1 - setting.refused, setting.let_through)
    null = (random.random(setting.sources) < RATE)[source]
    right = np.where(valid, random.random(len(source)) < RATE - setting.drop, _invalid(setting.invalid, null, random))
    _, place, counts = np.unique(source[accepted], return_inverse=True, return_counts=True)
    difference = right[accepted].astype(float) - null[accepted]
    correct = np.bincount(place, difference, len(counts)) / counts
    errors = CheckErrors(
        valid=setting.calibrated,
        valid_accepted=int(random.binomial(setting.calibrated, 1 - setting.refused)),
        invalid=setting.calibrated,
        invalid_accepted=int(random.binomial(setting.calibrated, setting.let_through)),
    )
    units = np.arange(len(correct))
    differences = Differences(units, correct, np.full(len(correct), np.nan), len(place))
    effect = among_valid(differences, LEVEL, errors, Screened(source, accepted), seed)
    truth = -setting.drop
    share = setting.valid * (1 - setting.refused)
    share /= share + (1 - setting.valid) * setting.let_through
    observed = mean_interval(correct, LEVEL, seed)
    within = observed.high < -BEYOND and 1 - share <= breakdown_point(observed.high)
    return EffectOutcome(
        setting,
        effect.interval.low - 1e-9 <= truth <= effect.interval.high + 1e-9,
        effect.interval.high - effect.interval.low,
        effect.estimate - truth,
        truth < -BEYOND if within else None,
    )


def _invalid(invalid: Invalid, null: NDArray[np.bool_], random: np.random.Generator) -> NDArray[np.bool_]:
    if invalid == "lost":
        return np.zeros(len(null), bool)
    return null if invalid == "unchanged" else random.random(len(null)) < 0.5
