"""The calibrated model of the checks: from the scores of an image to its probability of being valid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args

from pydantic import Field

from shared.schemas.base import Contract
from shared.schemas.estimates import Estimate

Signal = Literal["object", "recaption", "judge"]  # scores that a job has on request
VALIDITY = "validity"  # the score that the model gives, and the check of it
_OF_SCORER = ("label", "caption", "caption_gain", "direction", "fit", "likeness", "match", "word")
# The scores of an image from which a model is fitted.
SIGNALS = (
    "structure", *_OF_SCORER, *(f"second_{name}" for name in _OF_SCORER), "shapes", "things", "recaption",
    "object", "recaption_label", "recaption_value", "judge_label", "judge_value",
)  # fmt: skip
# Scores that are probabilities. Their log-odds enter the model, clipped at these probabilities.
PROBABILITIES = ("label", "second_label", "judge_label", "judge_value")
_CLIP = 1e-3


class SignalWeight(Contract):
    """One score in the model: its mean and standard deviation on the judged images, and its weight."""

    mean: float
    scale: Annotated[float, Field(gt=0)]
    weight: float


class ValidityModel(Contract):
    """A logistic regression of validity on scores, fitted on `images` judged counterfactuals, of which `valid` are.

        log-odds = intercept + Σ weight · (signal − mean) / scale + mean of the weights of the edit's factors

    A missing score counts as its mean, a factor that is not listed as 0. `auroc`: cross-validated by source image, with
    a 95 % interval.
    """

    intercept: float
    signals: Annotated[dict[str, SignalWeight], Field(min_length=1)]
    factors: dict[str, float] = Field(default_factory=dict)
    images: Annotated[int, Field(ge=1)]
    valid: Annotated[int, Field(ge=0)]
    auroc: Estimate

    def probability(self, scores: Mapping[str, float], factors: Sequence[str]) -> float | None:
        """P(valid) of an image, 0 to 1, from its scores and the factors of its edit; None without a known score."""
        present = {name: signal_value(name, scores[name]) for name in self.signals if name in scores}
        if not present:
            return None
        logit = self.intercept + sum(
            self.signals[name].weight * (value - self.signals[name].mean) / self.signals[name].scale
            for name, value in present.items()
        )
        if factors:
            logit += sum(self.factors.get(factor, 0.0) for factor in factors) / len(factors)
        return 1.0 / (1.0 + math.exp(-min(max(logit, -500.0), 500.0)))


def signals_of(model: ValidityModel) -> tuple[Signal, ...]:
    """The signals that a job must have for the scores that a model weighs."""
    names: tuple[Signal, ...] = get_args(Signal)
    return tuple(name for name in names if any(own == name or own.startswith(f"{name}_") for own in model.signals))


def signal_value(name: str, score: float) -> float:
    """What enters the model for a score: the log-odds of a probability, any other score as it is."""
    if name not in PROBABILITIES:
        return score
    clipped = min(max(score, _CLIP), 1 - _CLIP)
    return math.log(clipped / (1 - clipped))
