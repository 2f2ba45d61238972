"""The answer key: what each change truly does to each model, on renderer counterfactuals of its own distribution.

Every scene of a class is drawn once with every value of a field, all else as it was. Factors are independent in the
own distribution, so the effect of a change *to* v is the accuracy with v minus that with the other values, weighted as
the own distribution has them; of a change *from* v, that of the others (equally likely) minus that with v. Both are
means of paired differences over scenes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoImageProcessor, ResNetForImageClassification

from gateway.analysis.certainty import LEVEL, mean_interval, wilson
from shared.schemas.results import Cell, Direction
from shared.seeds import derive_seed
from shared.weights import digest_folder
from tinyworld.own_distribution import SHARES, own_distribution
from tinyworld.pictures import Pixels, rendered
from tinyworld.world import CLASSES, EDIT_FACTOR, FACTOR_VALUES
from tinyworld.yardstick.classifiers import model_folder, sepia
from tinyworld.yardstick.formats import AnswerKey, KnownModel, Planting, TrueEffect
from tinyworld.yardstick.plants import MODELS, OUTSIDE_VALUE, TESTED_CLASSES, Planned, Plant

Bits = NDArray[np.bool_]
Floats = NDArray[np.float64]
SEED = 0
FIRST_SCENE = 300_000  # of the split "final-test": beyond what any other judge of the models has looked at
OWN_SCENES = 1_000
FIELDS = ("time", "weather")
ALL_FIELDS = (*FIELDS, "background", "style", "colour")
Correct = dict[str, dict[tuple[str, str], Bits]]  # by model, by (class, field): scenes × values


def measure(
    scenes_per_class: int, fields: Sequence[str], command: str, planned: Sequence[Planned] = MODELS
) -> AnswerKey:
    """Draw the scenes, ask every model, and take the differences. Takes about 10 CPU ms a picture, plus 0.3 a model."""
    models = {one.name: _load(model_folder(one.name)) for one in planned}
    own = [own_distribution(FIRST_SCENE + index, "final-test") for index in range(OWN_SCENES)]
    right = _right([rendered(scene)[0] for scene in own], [scene.label for scene in own], models)
    correct: Correct = {name: {} for name in models}
    outside: dict[str, dict[str, Floats]] = {name: {} for name in models}
    for label in TESTED_CLASSES:
        for field in fields:
            for name, bits in _answers(label, field, scenes_per_class, models).items():
                correct[name][label, field] = bits
        for name, change in _outside(label, scenes_per_class, models).items():
            outside[name][label] = change
        print(f"{label}: measured", flush=True)
    shares = {field: own_shares(field) for field in fields}
    return AnswerKey(
        command=command,
        seed=SEED,
        scenes_per_class=scenes_per_class,
        fields=list(fields),
        interval=f"{LEVEL:.0%}, as gateway.analysis.certainty.mean_interval: bootstrap-t over scenes, or betting",
        models=[
            KnownModel(
                name=one.name,
                weights=digest_folder(model_folder(one.name).resolve()),
                planted=[planting(plant) for plant in one.plants],
                accuracy=wilson(int(right[one.name].sum()), OWN_SCENES),
                cells=[
                    cell
                    for (label, field), bits in correct[one.name].items()
                    for cell in effects(one.name, label, field, bits, shares[field])
                ],
                outside=_outside_effects(one, outside[one.name]),
            )
            for one in planned
        ],
    )


def effects(model: str, label: str, field: str, correct: Bits, shares: Floats) -> list[TrueEffect]:
    """All cells of a class and field, from what was right (scenes × values) and the values' shares, summing to 1."""
    values = FACTOR_VALUES[field]
    found = []
    for place, value in enumerate(values):
        others = np.arange(len(values)) != place
        here = correct[:, place].astype(float)
        to = here - correct[:, others] @ (shares[others] / shares[others].sum())
        away = correct[:, others].mean(axis=1) - here
        found += [_true(model, _cell(label, field, str(value), "to"), to)]
        found += [_true(model, _cell(label, field, str(value), "from"), away)]
    return found


def own_shares(field: str) -> Floats:
    """How often each value of a field of `ALL_FIELDS` is in the own distribution."""
    values = FACTOR_VALUES[field]
    return np.array([SHARES[field][str(value)] if field in SHARES else 1 / len(values) for value in values])


def planting(plant: Plant) -> Planting:
    """A plant in the words of findings."""
    cell = _cell(plant.label, plant.field, plant.value, "to")
    return Planting(kind=plant.kind, cell=cell, called=plant.called, places=list(plant.places))


def _cell(label: str, field: str, value: str, direction: Direction) -> Cell:
    return Cell(label=label, factor=EDIT_FACTOR[field], value=value, direction=direction)


def _true(model: str, cell: Cell, differences: Floats) -> TrueEffect:
    seed = derive_seed("answer key", SEED, model, cell.label, cell.factor, cell.value, cell.direction)
    interval = mean_interval(differences, LEVEL, seed)
    effect, low, high = (round(value, 4) for value in (float(differences.mean()), interval.low, interval.high))
    return TrueEffect(cell=cell, effect=effect, low=low, high=high, n=len(differences))


def _answers(label: str, field: str, count: int, models: dict[str, Judge]) -> dict[str, Bits]:
    """Per model, what is right (scenes, values) when every scene of a class is drawn with every value of a field."""
    scenes = [own_distribution(FIRST_SCENE + index, "final-test").changed(label=label) for index in range(count)]
    columns = []
    for value in FACTOR_VALUES[field]:
        images = [rendered(scene.changed(**{field: str(value)}))[0] for scene in scenes]
        columns.append(_right(images, [label] * count, models))
    return {name: np.stack([column[name] for column in columns], axis=1) for name in models}


def _outside(label: str, count: int, models: dict[str, Judge]) -> dict[str, Floats]:
    """Per model, per scene of a class, right in sepia minus right as it was."""
    scenes = [own_distribution(FIRST_SCENE + index, "final-test").changed(label=label) for index in range(count)]
    images = [rendered(scene)[0] for scene in scenes]
    before = _right(images, [label] * count, models)
    after = _right([sepia(image) for image in images], [label] * count, models)
    return {name: after[name].astype(float) - before[name] for name in models}


def _outside_effects(planned: Planned, changes: dict[str, Floats]) -> list[TrueEffect]:
    """The effects of the outside value on a model in which it was planted; others were never shown it."""
    if all(plant.kind != "outside" for plant in planned.plants):
        return []
    return [
        _true(planned.name, _cell(label, "style", OUTSIDE_VALUE, "to"), change) for label, change in changes.items()
    ]


Judge = Callable[[Tensor], NDArray[np.int64]]


def _right(images: Sequence[Pixels], labels: Sequence[str], models: dict[str, Judge]) -> dict[str, Bits]:
    """Per model, whether it names each picture's label; all see the same pixel values, as the service makes them."""
    processor = AutoImageProcessor.from_pretrained(model_folder(next(iter(models))), backend="pil")
    values = processor(images=list(images), return_tensors="pt")["pixel_values"]
    wanted = np.array([CLASSES.index(label) for label in labels])
    return {name: judge(values) == wanted for name, judge in models.items()}


def _load(folder: Path) -> Judge:
    return partial(_places, ResNetForImageClassification.from_pretrained(folder, dtype=torch.float32).eval())


@torch.inference_mode()
def _places(model: ResNetForImageClassification, values: Tensor) -> NDArray[np.int64]:
    """Indices into `CLASSES` of the likeliest class of each picture."""
    parts = [model(pixel_values=part).logits.argmax(1) for part in torch.split(values, 100)]
    return np.asarray(torch.cat(parts).numpy(), np.int64)
