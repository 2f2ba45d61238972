"""Pre-train vision transformers on the factors of a scene, before training with text.

Through captions or contrast alone, a small tower learns colours and weather long before it tells a bus from a truck;
linear heads on pooled patches, the label weighted threefold, teach it in minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tinyworld.datasets.captioned_pictures import Album, PictureDomain
from tinyworld.networks.half_precision import autocast
from tinyworld.objects.factors import FactorHeads, factor_accuracy, factor_loss
from tinyworld.objects.pictures import as_pixel_values
from tinyworld.train.loop import Progress, Recipe, train

LABEL_WEIGHT = 3.0


class FactorTower(nn.Module):
    """A vision transformer of transformers with factor heads on its pooled patches and on its pooled output."""

    def __init__(self, vision: nn.Module, width: int, names: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__()
        self.vision = vision
        self.names = names
        self.on_patches = FactorHeads(2 * width, names)
        self.on_pooled = FactorHeads(width, names)

    def forward(self, pixel_values: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """pixel_values (batch, 3, side, side) → logits from the patches, logits from the pooled output."""
        output = self.vision(pixel_values=pixel_values)
        patches = output.last_hidden_state[:, 1:]
        logits: list[Tensor] = self.on_patches(torch.cat([patches.mean(1), patches.amax(1)], dim=1))
        return logits, self.on_pooled(output.pooler_output)

    def loss(self, pixel_values: Tensor, wanted: Tensor) -> Tensor:
        """Factor loss of both sets of heads."""
        on_patches, on_pooled = self(pixel_values)
        from_pooled = factor_loss(on_pooled, wanted, LABEL_WEIGHT, self.names)
        return factor_loss(on_patches, wanted, LABEL_WEIGHT, self.names) + 0.5 * from_pooled


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
    for start in range(0, count, 50):
        images = np.stack([domain.picture(scene) for scene in scenes[start : start + 50]])
        guesses.append(torch.stack([logit.argmax(1) for logit in tower(as_pixel_values(images))[0]], dim=1))
    wanted = torch.tensor([domain.targets(domain.shown(scene)) for scene in scenes])
    return {"tower alone, accuracy": factor_accuracy(torch.cat(guesses), wanted, tower.names)}
