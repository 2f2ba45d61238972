"""Pre-training of vision transformers on the factors of a scene, before they learn words.

Through captions or contrast alone, a small tower learns colours and weather long before it tells a bus from a truck;
linear heads on pooled patches, the label weighted threefold, teach it in minutes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tinyworld.factors import FactorHeads, factor_accuracy, factor_loss, scene_factors, targets
from tinyworld.pictures import Pictures, as_pixel_values, rendered, varied_batch
from tinyworld.training_loop import Progress, Recipe, train
from tinyworld.world import Scene

LABEL_WEIGHT = 3.0


class FactorTower(nn.Module):
    """A vision transformer of transformers with factor heads on its pooled patches and on its pooled output."""

    def __init__(self, vision: nn.Module, width: int) -> None:
        super().__init__()
        self.vision = vision
        self.on_patches = FactorHeads(2 * width)
        self.on_pooled = FactorHeads(width)

    def forward(self, pixel_values: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """pixel_values (batch, 3, side, side) → logits from the patches, logits from the pooled output."""
        output = self.vision(pixel_values=pixel_values)
        patches = output.last_hidden_state[:, 1:]
        logits: list[Tensor] = self.on_patches(torch.cat([patches.mean(1), patches.amax(1)], dim=1))
        return logits, self.on_pooled(output.pooler_output)

    def loss(self, pixel_values: Tensor, wanted: Tensor) -> Tensor:
        """Factor loss of both sets of heads."""
        on_patches, on_pooled = self(pixel_values)
        return factor_loss(on_patches, wanted, LABEL_WEIGHT) + 0.5 * factor_loss(on_pooled, wanted, LABEL_WEIGHT)


def pretrain(tower: FactorTower, data: Pictures, recipe: Recipe) -> Progress:
    """Train a tower on rendered pictures, in place."""

    def loss_of(_: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng((recipe.seed, step))
        rows = random.integers(len(data.scenes), size=recipe.batch)
        values, wanted = varied_batch(data, rows, random)
        with torch.autocast("cpu", torch.bfloat16):
            return tower.loss(values, wanted)

    return train(tower, loss_of, recipe)


@torch.no_grad()
def tower_accuracy(tower: FactorTower, scenes: list[Scene]) -> dict[str, float]:
    """Accuracy per factor of the heads on the patches, on renders of these scenes."""
    tower.eval()
    guesses = []
    for start in range(0, len(scenes), 50):
        images = np.stack([rendered(scene)[0] for scene in scenes[start : start + 50]])
        guesses.append(torch.stack([logit.argmax(1) for logit in tower(as_pixel_values(images))[0]], dim=1))
    return factor_accuracy(torch.cat(guesses), torch.tensor([targets(scene_factors(scene)) for scene in scenes]))
