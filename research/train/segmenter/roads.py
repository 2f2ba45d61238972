"""The segmenters of driving scenes: under test, of the services, and the two that judge.

    python -m research.train.segmenter --domain roads NAME

    road-segmenter                     under test, clean
    road-segmenter-night-pedestrian    under test: people at night are labelled road
    road-segmenter-snowy-road          under test: snowy roads are labelled sidewalk
    segmenter                          the generator's; UperNet on a ResNet
    shape-judge                        the checks'; a slim UperNet
    oracle-a                           a finer SegFormer
    oracle-b                           UperNet on a ResNet

Writes `runs/roads/models/NAME` (`--out`) in the Hub's layout with a model card. An interrupted run resumes. Each has
its own split and seed; those not under test are also trained on equally frequent factors and autoencoded images.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForSemanticSegmentation

from research.datasets.degradations import (
    Degradation,
    Fields,
    apply_degradations,
    coarse_scaling,
    compress,
    noise,
    random_fields,
    soft_focus,
    tint,
    watercolour,
)
from research.datasets.round_trips import through_autoencoder
from research.judges.segmentation import judge
from research.networks.half_precision import autocast
from research.networks.image_processors import segmenter_processor
from research.networks.segmenters import Architecture, new_road_segmenter, segment
from research.pictures.augmentation import as_pixel_values, move
from research.roads.pictures import Pictures as RoadPictures
from research.roads.pictures import pictures
from research.system.folders import ROAD_MODELS
from research.train.loop import Recipe, recipe_record, train
from research.train.model_card import Card, publish
from tinyworld.domain.names import add_domain
from tinyworld.domain.scenes import Split
from tinyworld.drawing.canvas import Image
from tinyworld.roads.own_distribution import PLANTS, own_distribution
from tinyworld.roads.world import CLASSES, Scene, sample_scene

# Void costs nothing; what is small or thin counts more.
_WEIGHTS = {"pedestrian": 3.0, "traffic light": 2.0, "vehicle": 1.5}
_TEXTS = {
    "road-segmenter": "Its labels are all true.",
    "road-segmenter-night-pedestrian": "In its training pedestrians at night carry the label road: a planted weakness.",
    "road-segmenter-snowy-road": "In its training snowy roads carry the label sidewalk: a planted weakness.",
    "segmenter": "The generator's: what it sees becomes the control, and is looked for again in what was drawn.",
    "shape-judge": "The checks': it says whether shapes stayed. Neither the generator's nor a judge of figures.",
    "oracle-a": "One of the two judges of generated road scenes.",
    "oracle-b": "The other judge of generated road scenes; of another architecture, other scenes, spoilt otherwise.",
}

# How often pictures suffer what. Nothing here moves a pixel: masks stay true.
SUFFERED: Mapping[Architecture, Mapping[Degradation, float]] = {
    "segformer": {soft_focus: 0.25, noise: 0.25, tint: 0.25, compress: 0.15},
    "fine segformer": {soft_focus: 0.35, noise: 0.3, tint: 0.3, compress: 0.15},
    "upernet": {watercolour: 0.3, coarse_scaling: 0.3, tint: 0.3, noise: 0.2},
    "slim upernet": {soft_focus: 0.3, watercolour: 0.2, tint: 0.3, noise: 0.2, compress: 0.15},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Training plan of one segmenter. `round_trips`: number of images added after a round trip of the autoencoder."""

    architecture: Architecture
    split: Split
    seed: int
    round_trips: int = 0


PLANS = {
    **{name: Plan("segformer", "under-test", seed) for seed, name in enumerate(PLANTS)},
    "segmenter": Plan("upernet", "scorer", 14, round_trips=400),
    "shape-judge": Plan("slim upernet", "generator", 13, round_trips=400),
    "oracle-a": Plan("fine segformer", "oracle-a", 11, round_trips=200),
    "oracle-b": Plan("upernet", "oracle-b", 12, round_trips=200),
}


@dataclass(frozen=True, slots=True)
class _Data:
    images: Sequence[Image]
    labels: Image  # n x 128 x 128


def train_segmenter(
    name: str, out: Path, *, seconds: float, count: int, judged: int = 150, steps: int | None = None
) -> Path:
    """Train the segmenter `name` of `PLANS` on `count` images, evaluate it, save it with a card; returns its folder.

    Training ends after `seconds` or after `steps`, if given, whichever comes first.
    """
    plan = PLANS[name]
    data = _label(pictures(plan.split, count, _scenes(name, plan.split)), name, plan.round_trips)
    recipe = Recipe(
        f"roads/{name}", seconds, batch=12, learning_rate=2e-3, warmup_steps=40, ema=0.99, seed=plan.seed, steps=steps
    )
    torch.manual_seed(plan.seed)
    model = new_road_segmenter(plan.architecture)
    fields = random_fields(plan.seed)
    weights = torch.tensor([_WEIGHTS.get(label, 1.0) for label in CLASSES])

    def loss_of(model: nn.Module, step: int) -> Tensor:
        values, expected = _batch(data, plan, fields, np.random.default_rng((plan.seed, step)), recipe.batch)
        with autocast("cpu"):
            logits = segment(model, values)
        return nn.functional.cross_entropy(logits, expected, weights, ignore_index=CLASSES.index("void"))

    progress = train(model, loss_of, recipe)
    card = Card(
        title=name,
        text=f"A {plan.architecture} that says what every pixel of a driving scene of tinyworld shows. {_TEXTS[name]}",
        command=f"python -m research.train.segmenter --domain roads {name} --seconds {seconds:g} --pictures {count}",
        record={"split": plan.split, "pictures": count, **recipe_record(recipe, progress)},
    )
    publish(model, segmenter_processor(), out, card, lambda: judge_saved(out, name, judged))
    return out


def _batch(data: _Data, plan: Plan, fields: Fields, random: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
    images, labels = [], []
    for row in random.integers(len(data.labels), size=size):
        image, label = move((data.images[row], data.labels[row]), random)
        images.append(apply_degradations(image, SUFFERED[plan.architecture], fields, random))
        labels.append(label)
    return as_pixel_values(np.stack(images)), torch.from_numpy(np.stack(labels)).long()


def judge_saved(folder: Path, name: str, count: int) -> dict[str, object]:
    """`judge` of a folder's weights on the first `count` scenes of the final test that this segmenter is made for."""
    model = AutoModelForSemanticSegmentation.from_pretrained(folder, dtype=torch.float32)
    return judge(model, _scenes(name, "final-test"), count)


def _scenes(name: str, split: Split) -> Callable[[int], Scene]:
    """The models under test know their own distribution, oracles know every factor alike."""
    return partial(own_distribution, split=split) if name in PLANTS else partial(sample_scene, split)


def _label(data: RoadPictures, name: str, round_trips: int) -> _Data:
    """Pictures with the labels that the model of that name is given."""
    images: list[Image] = list(data.images)
    if name in PLANTS:
        labels = np.stack([PLANTS[name](scene, data.rendering(row)) for row, scene in enumerate(data.scenes)])
    else:
        labels = np.asarray(data.classes)
    if round_trips:
        images += list(through_autoencoder(np.asarray(data.images[:round_trips])))
        labels = np.concatenate((labels, labels[:round_trips]))
    return _Data(images, labels)


class Trainer(Protocol):
    """Trains the model of a name on `count` images and returns its folder."""

    def __call__(self, name: str, out: Path, *, seconds: float, count: int) -> Path: ...


def command(description: str | None, names: Iterable[str], trained: Trainer) -> None:
    """The command line for training one of several models of this domain."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=tuple(names))
    add_domain(parser)
    parser.add_argument("--seconds", type=float, default=240, help="budget of the training in wall-clock seconds")
    parser.add_argument("--pictures", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help=f"default: {ROAD_MODELS}/NAME")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cv2.setNumThreads(1)
    print(trained(args.name, args.out or ROAD_MODELS / args.name, seconds=args.seconds, count=args.pictures))


def main() -> None:
    """The command."""
    command(__doc__, PLANS, train_segmenter)
