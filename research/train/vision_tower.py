"""Pre-train vision transformers on the factors of a scene, before training with text.

Through captions or contrast alone, a small tower learns colours and weather long before it tells a bus from a truck;
linear heads on pooled patches, the label weighted threefold, teach it in minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from research.datasets.captioned_pictures import Album, PictureDomain
from research.networks.factor_heads import factor_accuracy
from research.networks.half_precision import autocast
from research.networks.vision_tower import FactorTower
from research.pictures.augmentation import as_pixel_values
from research.train.loop import Progress, Recipe, recipe_record, train
from shared.chunks import chunks


def pretrain(tower: FactorTower, data: Album, recipe: Recipe) -> Progress:
    """Train a tower on rendered images, in place."""

    def loss_of(_: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng((recipe.seed, step))
        rows = random.integers(len(data), size=recipe.batch)
        flips = random.random(recipe.batch) < 0.5
        views = [data.view(row, random, flip=bool(flip)) for row, flip in zip(rows, flips, strict=True)]
        values = as_pixel_values(np.stack([view.image for view in views]))
        with autocast("cpu"):
            return tower.loss(values, torch.tensor([view.targets for view in views]))

    return train(tower, loss_of, recipe)


@torch.no_grad()
def tower_accuracy(tower: FactorTower, domain: PictureDomain[Any], count: int = 400) -> dict[str, dict[str, float]]:
    """Accuracy per factor of the heads on the patches, on renders of the first final-test scenes of a domain."""
    tower.eval()
    scenes = domain.scenes(0, count)
    guesses = []
    for chunk in chunks(scenes, 50):
        images = np.stack([domain.picture(scene) for scene in chunk])
        guesses.append(torch.stack([logit.argmax(1) for logit in tower(as_pixel_values(images))[0]], dim=1))
    expected = torch.tensor([domain.targets(domain.shown(scene)) for scene in scenes])
    return {"tower alone, accuracy": factor_accuracy(torch.cat(guesses), expected, tower.names)}


class TrainedTower(NamedTuple):
    """A vision tower trained on the factors: its record and accuracies for the model card."""

    tower: FactorTower
    record: Mapping[str, object]
    accuracy: dict[str, dict[str, float]]


def train_tower(vision: nn.Module, width: int, data: Album, recipe: Recipe) -> TrainedTower:
    """Train a vision model, whose features have `width` values, to tell the factors of its domain's images."""
    tower = FactorTower(vision, width, data.domain.values)
    progress = pretrain(tower, data, recipe)
    accuracy = tower_accuracy(tower, data.domain)
    print("tower", progress, accuracy, flush=True)
    return TrainedTower(tower, recipe_record(recipe, progress), accuracy)
