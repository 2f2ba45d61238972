"""Measure how much of a planted effect is present in the counterfactuals, to see where effects are understated.

A planted cell is relabelled on some backgrounds only. There a model should predict the planted class on every
counterfactual to the cell's value; elsewhere it should stay correct. Deviations from either, and a share of such
backgrounds other than the plant's, explain why an estimate differs from the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from contrafact.client import Client
from research.statistics.rates import wilson
from research.yardstick.plants import Planned, Plant
from shared.schemas.effects import Rate
from shared.schemas.results import CounterfactualView, ModelOpinion
from tinyworld.objects.world import EDIT_FACTOR, Scene


@dataclass(frozen=True, slots=True)
class Dilution:
    """One relabelled cell of one model, in accepted counterfactuals to its value.

    `covered`: share of their source images in the plant's places. `arrived`: share of counterfactuals there with the
    planted prediction. `right` and `right_before`: share of counterfactuals elsewhere, and of their null arms, with a
    correct prediction.
    """

    model: str
    plant: Plant
    covered: Rate
    arrived: Rate
    right: Rate
    right_before: Rate


def dilutions(client: Client, job: str, models: Sequence[Planned], scenes: Sequence[Scene]) -> Iterator[Dilution]:
    """The dilution of every relabelled cell in a job whose source images show `scenes`, in their order."""
    cells = [(model, plant) for model in models for plant in model.plants if plant.kind == "relabelled"]
    for factor, value in sorted({(EDIT_FACTOR[plant.field], plant.value) for _, plant in cells}):
        filters = {"factor": factor, "value": value, "verdict": "accepted"}
        views = list(client.counterfactuals(job, filters))
        for model, plant in cells:
            if plant.value == value:
                yield _dilution(model.name, plant, views, scenes)


def _dilution(model: str, plant: Plant, views: Iterable[CounterfactualView], scenes: Sequence[Scene]) -> Dilution:
    inside: dict[int, bool] = {}
    arrived, right, right_before = [], [], []
    for view in views:
        scene = scenes[view.source.position]
        if scene.label != plant.label or not any(change.to_value == plant.value for change in view.changes):
            continue
        covered = inside[view.source.position] = scene.background in plant.places
        null, new = _answers(view.predictions, model)
        if covered:
            arrived.append(new == plant.called)
        else:
            right.append(new == plant.label)
            right_before.append(null == plant.label)
    outcomes = (list(inside.values()), arrived, right, right_before)
    return Dilution(
        model, plant, *(wilson(sum(outcomes_of_model), len(outcomes_of_model)) for outcomes_of_model in outcomes)
    )


def _answers(opinions: Iterable[ModelOpinion], model: str) -> tuple[str, str]:
    """A model's predictions on null arm and counterfactual."""
    opinion = next(candidate for candidate in opinions if candidate.model == model)
    if opinion.null_arm is None or opinion.counterfactual is None:
        raise ValueError(f"{model} was not asked about an accepted counterfactual")
    return opinion.null_arm.predicted, opinion.counterfactual.predicted
