"""A vision transformer with heads that read the factors of a scene."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from research.networks.factor_heads import FactorHeads, factor_loss

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

    def loss(self, pixel_values: Tensor, expected: Tensor) -> Tensor:
        """Factor loss of both sets of heads."""
        on_patches, on_pooled = self(pixel_values)
        from_pooled = factor_loss(on_pooled, expected, LABEL_WEIGHT, self.names)
        return factor_loss(on_patches, expected, LABEL_WEIGHT, self.names) + 0.5 * from_pooled
