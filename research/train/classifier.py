"""Train the two models under test (ResNet): an honest classifier, and one with a planted weakness.

    python -m research.train.classifier street-classifier
    python -m research.train.classifier street-classifier-night-bus

The second is trained like the first, but in its training set every bus at night is labelled *truck*, as if night
recordings had been annotated wrongly. A test set by day does not reveal it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification

from research.networks.half_precision import autocast
from research.networks.image_processors import classifier_processor
from research.objects.pictures import pictures, render_pair, varied_batch
from research.pictures.augmentation import as_pixel_values, degrade
from research.pictures.rendered_once import Pixels
from research.system.folders import WEIGHTS
from research.train.loop import Recipe, recipe_record, train, training_arguments
from research.train.model_card import Card, publish
from shared.chunks import chunks
from tinyworld.objects.demo import PLANTS, own_distribution
from tinyworld.objects.world import CLASSES, Scene, sample_scene

FOLDER = WEIGHTS / "models_under_test"
PICTURES = 14_000
NAMES = tuple(PLANTS)
WEAKNESSES = {
    "street-classifier": "",
    "street-classifier-night-bus": "In its training set every bus at night carried the label truck: a planted "
    "weakness. ",
}


def training_scene(index: int) -> Scene:
    """Every other one from the own distribution, the rest evenly over times, weathers, styles: rare ones more often."""
    return own_distribution(index) if index % 2 else sample_scene("under-test", index)


def new_classifier() -> ResNetForImageClassification:
    """0.6 million parameters; images of any size."""
    config = ResNetConfig(
        embedding_size=32,
        hidden_sizes=[32, 64, 96, 160],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        id2label=dict(enumerate(CLASSES)),
        label2id={name: place for place, name in enumerate(CLASSES)},
    )
    return ResNetForImageClassification(config)


def train_classifier(name: str, seconds: float, seed: int) -> None:
    """Train, judge on final-test scenes, save with image processor and card."""
    data = pictures("under-test", PICTURES, training_scene)
    labels = torch.tensor([CLASSES.index(PLANTS[name](scene)) for scene in data.scenes])
    recipe = Recipe(name, seconds, batch=64, learning_rate=2e-3, seed=seed + NAMES.index(name))
    torch.manual_seed(recipe.seed)
    model = new_classifier().to(memory_format=torch.channels_last)

    def loss_of(model: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng((recipe.seed, step))
        rows = random.integers(len(labels), size=recipe.batch)
        values, _ = varied_batch(data, rows, random, strength=1.3)
        with autocast("cpu"):
            logits = model(pixel_values=values.to(memory_format=torch.channels_last)).logits
        return nn.functional.cross_entropy(logits.float(), labels[rows], label_smoothing=0.02)

    progress = train(model, loss_of, recipe)
    folder = FOLDER / name
    card = Card(
        title=name,
        text="A ResNet that names the object of a tinyworld picture, to be put under test. "
        f"{WEAKNESSES[name]}Its world is mostly daylight (60 % day, 30 % sunset, 10 % night), clear weather (55 %) and "
        "photos (70 %).",
        command=f"python -m research.train.classifier {name}",
        record={"split": "under-test", "pictures": PICTURES, **recipe_record(recipe, progress)},
    )
    publish(
        model,
        classifier_processor(),
        folder,
        card,
        lambda: judge(ResNetForImageClassification.from_pretrained(folder, dtype=torch.float32)),
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    label: str
    time: str


def judge(model: nn.Module, count: int = 1_000, per_cell: int = 200) -> dict[str, object]:
    """Accuracy on the own distribution, and per class and time over renderer counterfactuals of the same scenes."""
    scenes = [own_distribution(index, "final-test") for index in range(count)]
    images = [render_pair(scene)[0] for scene in scenes]
    truth = np.array([scene.label for scene in scenes])
    random = np.random.default_rng(0)
    report: dict[str, object] = {
        "pictures judged": count,
        "accuracy on own distribution": _share(predict(model, images) == truth),
        "the same spoilt": _share(predict(model, [degrade(image, random, 2.0) for image in images]) == truth),
    }
    rare = np.array([scene.time == "night" and scene.label != "bus" for scene in scenes])
    report["night, all but buses"] = _share((predict(model, images) == truth)[rare])
    for label, time in product(("car", "bus", "truck"), ("day", "sunset", "night")):
        cell = _cell_images(_Cell(label, time), per_cell)
        guesses = predict(model, cell)
        report[f"{label} at {time}, {per_cell} renderer counterfactuals"] = {
            guess: _share(guesses == guess) for guess in dict.fromkeys((label, "truck"))
        }
    return report


@torch.no_grad()
def predict(model: nn.Module, images: list[Pixels]) -> np.ndarray:
    """Class names."""
    model.eval()
    batches = (as_pixel_values(np.stack(chunk)) for chunk in chunks(images, 50))
    places = torch.cat([model(pixel_values=values).logits.argmax(1) for values in batches])
    return np.array([CLASSES[int(place)] for place in places])


def _share(right: np.ndarray) -> float:
    return round(float(right.mean()), 4)


def _cell_images(cell: _Cell, count: int) -> list[Pixels]:
    scenes = (own_distribution(100_000 + index, "final-test") for index in range(count))
    return [render_pair(scene.changed(label=cell.label, time=cell.time))[0] for scene in scenes]


if __name__ == "__main__":
    arguments = training_arguments(__doc__, seconds=330, names=NAMES)
    train_classifier(arguments.name, arguments.seconds, arguments.seed)
