"""The answer key: the true effect of each change on each model, measured on renderer counterfactuals.

Every scene of a class is rendered once with every value of a field, all else unchanged. Factors are independent in the
models' own distribution. So the effect of a change *to* v is the accuracy with v minus the accuracy with the other
values, weighted as in that distribution. The effect of a change *from* v is the accuracy with the other values (equally
likely) minus the accuracy with v. Both are means of paired differences over scenes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoImageProcessor, ResNetForImageClassification

from gateway.analysis.certainty import LEVEL, mean_interval
from research.objects.pictures import render_pair
from research.pictures.rendered_once import Pixels
from research.statistics.rates import wilson
from research.yardstick.classifiers import Lower, Top, model_folder, sepia
from research.yardstick.formats import AnswerKey, KnownModel, Planting, TrueEffect
from research.yardstick.plants import MODELS, OUTSIDE_VALUE, TESTED_CLASSES, Planned, Plant
from shared.chunks import chunks
from shared.profiles.weights import digest_folder
from shared.schemas.effects import Cell, Direction
from shared.seeds import derive_seed
from tinyworld.objects.demo import SHARES, own_distribution
from tinyworld.objects.world import CLASSES, EDIT_FACTOR, FACTOR_VALUES, Scene

Bits = NDArray[np.bool_]
Floats = NDArray[np.float64]
SEED = 0
FIRST_SCENE = 300_000  # of the split "final-test"; no other evaluation of the models uses scenes from here on
OWN_SCENES = 600
FIELDS = ("time", "weather")
ALL_FIELDS = (*FIELDS, "background", "style", "colour")
Correct = dict[str, dict[tuple[str, str], Bits]]  # by model, by (class, field): scenes × values


def measure(
    scenes_per_class: int, fields: Sequence[str], command: str, planned: Sequence[Planned] = MODELS
) -> AnswerKey:
    """Render the scenes, run every model, and compute the differences. Takes about 8 CPU ms per image."""
    judges = Judges([model.name for model in planned])
    shown_outside = judges.only(
        [model.name for model in planned if any(plant.kind == "outside" for plant in model.plants)]
    )
    scenes = [own_distribution(FIRST_SCENE + index, "final-test") for index in range(OWN_SCENES)]
    right = judges.right([render_pair(scene)[0] for scene in scenes], [scene.label for scene in scenes])
    correct: Correct = {model.name: {} for model in planned}
    outside: dict[str, dict[str, Floats]] = {model.name: {} for model in planned}
    for label in TESTED_CLASSES:
        for field in fields:
            for name, bits in _answers(label, field, scenes_per_class, judges).items():
                correct[name][label, field] = bits
        if shown_outside.tops:
            for name, change in _outside(label, scenes_per_class, shown_outside).items():
                outside[name][label] = change
        print(f"{label}: measured", flush=True)
    return AnswerKey(
        command=command,
        seed=SEED,
        scenes_per_class=scenes_per_class,
        fields=list(fields),
        interval=f"{LEVEL:.0%}, as gateway.analysis.certainty.mean_interval: bootstrap-t over scenes, or betting",
        models=[_key_of(model, right[model.name], correct[model.name], outside[model.name]) for model in planned],
    )


def _key_of(
    planned: Planned, right: Bits, correct: dict[tuple[str, str], Bits], outside: dict[str, Floats]
) -> KnownModel:
    return KnownModel(
        name=planned.name,
        weights=digest_folder(model_folder(planned.name).resolve()),
        planted=[planting(plant) for plant in planned.plants],
        accuracy=wilson(int(right.sum()), len(right)),
        cells=[
            cell
            for (label, field), bits in correct.items()
            for cell in effects(planned.name, label, field, bits, own_shares(field))
        ],
        outside=[
            _true(planned.name, _cell(label, "style", OUTSIDE_VALUE, "to"), change) for label, change in outside.items()
        ],
    )


def effects(model: str, label: str, field: str, correct: Bits, shares: Floats) -> list[TrueEffect]:
    """All cells of a class and field, from correctness (scenes × values) and the values' shares, which sum to 1."""
    values = FACTOR_VALUES[field]
    true_effects = []
    for place, value in enumerate(values):
        other_values = np.arange(len(values)) != place
        correct_of_value = correct[:, place].astype(float)
        to = correct_of_value - correct[:, other_values] @ (shares[other_values] / shares[other_values].sum())
        away = correct[:, other_values].mean(axis=1) - correct_of_value
        true_effects += [_true(model, _cell(label, field, str(value), "to"), to)]
        true_effects += [_true(model, _cell(label, field, str(value), "from"), away)]
    return true_effects


def own_shares(field: str) -> Floats:
    """The share of each value of a field of `ALL_FIELDS` in the models' own distribution."""
    values = FACTOR_VALUES[field]
    return np.array([SHARES[field][str(value)] if field in SHARES else 1 / len(values) for value in values])


def planting(plant: Plant) -> Planting:
    """A plant in the terms of findings."""
    cell = _cell(plant.label, plant.field, plant.value, "to")
    return Planting(kind=plant.kind, cell=cell, called=plant.called, places=list(plant.places))


def _cell(label: str, field: str, value: str, direction: Direction) -> Cell:
    return Cell(label=label, factor=EDIT_FACTOR[field], value=value, direction=direction)


def _true(model: str, cell: Cell, differences: Floats) -> TrueEffect:
    seed = derive_seed("answer key", SEED, model, cell.label, cell.factor, cell.value, cell.direction)
    interval = mean_interval(differences, LEVEL, seed)
    effect, low, high = (round(value, 4) for value in (float(differences.mean()), interval.low, interval.high))
    return TrueEffect(cell=cell, effect=effect, low=low, high=high, n=len(differences))


def _answers(label: str, field: str, count: int, judges: Judges) -> dict[str, Bits]:
    """Per model, correctness (scenes, values) when every scene of a class is rendered with every value of a field."""
    scenes = _scenes(label, count)
    columns = []
    for value in FACTOR_VALUES[field]:
        images = [render_pair(scene.changed(**{field: str(value)}))[0] for scene in scenes]
        columns.append(judges.right(images, [label] * count))
    return {name: np.stack([column[name] for column in columns], axis=1) for name in judges.tops}


def _outside(label: str, count: int, judges: Judges) -> dict[str, Floats]:
    """Per model, per scene of a class, right in sepia minus right as it was."""
    images = [render_pair(scene)[0] for scene in _scenes(label, count)]
    before = judges.right(images, [label] * count)
    after = judges.right([sepia(image) for image in images], [label] * count)
    return {name: after[name].astype(float) - before[name] for name in judges.tops}


def _scenes(label: str, count: int) -> list[Scene]:
    return [own_distribution(FIRST_SCENE + index, "final-test").changed(label=label) for index in range(count)]


class Judges:
    """All models together: their common part is computed once."""

    def __init__(self, names: Sequence[str]) -> None:
        models = {name: _load(model_folder(name)) for name in names}
        lower = [Lower(model).state_dict().values() for model in models.values()]
        if not all(torch.equal(a, b) for repetition in lower for a, b in zip(lower[0], repetition, strict=True)):
            raise ValueError("the models differ in the start that they should share; remove and train them again")
        self.lower = Lower(models[names[0]]).eval()
        self.tops = {name: Top(model).eval() for name, model in models.items()}
        self.processor = AutoImageProcessor.from_pretrained(model_folder(names[0]), backend="pil")

    def only(self, names: Sequence[str]) -> Judges:
        """The judges of these models only."""
        subset = copy.copy(self)
        subset.tops = {name: self.tops[name] for name in names}
        return subset

    @torch.inference_mode()
    def right(self, images: Sequence[Pixels], labels: Sequence[str]) -> dict[str, Bits]:
        """Per model, whether it predicts each image's label; images go through the service's own preprocessing."""
        truth = np.array([CLASSES.index(label) for label in labels])
        places: dict[str, list[Tensor]] = {name: [] for name in self.tops}
        for chunk in chunks(images, 100):
            values = self.processor(images=list(chunk), return_tensors="pt")["pixel_values"]
            features = self.lower(values)
            for name, top in self.tops.items():
                places[name].append(top(features).argmax(1))
        return {name: torch.cat(parts).numpy() == truth for name, parts in places.items()}


def _load(folder: Path) -> ResNetForImageClassification:
    return ResNetForImageClassification.from_pretrained(folder, dtype=torch.float32)
