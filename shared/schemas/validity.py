"""The calibrated model of the checks: from the scores of an image to its probability of being valid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple, get_args

from pydantic import Field

from shared.schemas.base import Contract
from shared.schemas.effects import Estimate

Signal = Literal["object", "recaption", "judge", "pairwise"]  # scores that a job has on request
VALIDITY: Final = "validity"  # the score that the model gives, and the check of it
JUDGED = ("judge_label", "judge_value", "judge_rest", "pairwise")  # by a vision-language model
OTHER_MODELS = ("object", "recaption_label", "recaption_value", *JUDGED)  # of signals
# Scores that are probabilities. Their log-odds enter the model, clipped at these probabilities.
PROBABILITIES = ("label", "second_label", *JUDGED)
_CLIP = 1e-3


class EditKind(NamedTuple):
    """What the model knows of an edit besides its scores: the factors and values that it changes to, and the class."""

    factors: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


class SignalWeight(Contract):
    """One score in the model: its mean and standard deviation on the judged images, and its weight."""

    mean: float
    scale: Annotated[float, Field(gt=0)]
    weight: float


class ValidityModel(Contract):
    """A logistic regression of validity on scores, fitted on `images` judged counterfactuals, `valid` of them valid.

        log-odds = intercept + Σ weight · (signal − mean) / scale + weights of the edit's factor, value and class

    An edit with several factors or values gets the mean of their weights. A missing score counts as its mean, a factor,
    value or class that is not listed as 0. `auroc` is cross-validated by source image and has a 95 % interval.
    `auroc_of_scores` is that of a model without value and class, which measures the scores alone.
    """

    intercept: float
    signals: Annotated[dict[str, SignalWeight], Field(min_length=1)]
    factors: dict[str, float] = Field(default_factory=dict)
    values: dict[str, float] = Field(default_factory=dict)
    classes: dict[str, float] = Field(default_factory=dict)
    images: Annotated[int, Field(ge=1)]
    valid: Annotated[int, Field(ge=0)]
    auroc: Estimate
    auroc_of_scores: Estimate

    def probability(self, scores: Mapping[str, float], edit: EditKind) -> float | None:
        """P(valid) of an image, 0 to 1, from its scores and the kind of its edit; None without a known score."""
        present = {name: signal_value(name, scores[name]) for name in self.signals if name in scores}
        if not present:
            return None
        logit = self.intercept + sum(
            self.signals[name].weight * (value - self.signals[name].mean) / self.signals[name].scale
            for name, value in present.items()
        )
        for weights, names in zip((self.factors, self.values, self.classes), edit, strict=True):
            logit += sum(weights.get(name, 0.0) for name in names) / len(names) if names else 0.0
        return 1.0 / (1.0 + math.exp(-min(max(logit, -500.0), 500.0)))


def signals_of(model: ValidityModel) -> tuple[Signal, ...]:
    """The signals that a job must have for the scores that a model weighs."""
    names: tuple[Signal, ...] = get_args(Signal)
    return tuple(
        name for name in names if any(signal == name or signal.startswith(f"{name}_") for signal in model.signals)
    )


def signal_value(name: str, score: float) -> float:
    """What enters the model for a score: the log-odds of a probability, any other score as it is."""
    if name not in PROBABILITIES:
        return score
    clipped = min(max(score, _CLIP), 1 - _CLIP)
    return math.log(clipped / (1 - clipped))
