"""Linear heads that read the factors of a scene, their loss and their accuracy.

A target is the index of a value, or `UNKNOWN`, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tinyworld.domain.scenes import UNKNOWN
from tinyworld.objects.world import FACTORS


class FactorHeads(nn.Module):
    """One linear head per factor over a pooled feature vector."""

    def __init__(self, features: int, names: Mapping[str, tuple[str, ...]] = FACTORS) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(features, len(values)) for name, values in names.items()})

    def forward(self, features: Tensor) -> list[Tensor]:
        """features (batch, width) → logits per factor, each (batch, number of values)."""
        return [head(features) for head in self.heads.values()]


def split_factors(logits: Tensor, names: Mapping[str, tuple[str, ...]]) -> list[Tensor]:
    """Concatenated logits (batch, all values, ...) → per factor (batch, its values, ...), in the order of `names`."""
    return list(torch.split(logits, [len(values) for values in names.values()], dim=1))


def factor_loss(
    logits: list[Tensor],
    expected: Tensor,
    label_weight: float = 1.0,
    names: Mapping[str, tuple[str, ...]] = FACTORS,
) -> Tensor:
    """Mean over factors of the cross-entropy, the label weighted; `expected` (batch, factors) with `UNKNOWN`."""
    loss = torch.zeros(())
    for name, column, logit in zip(names, expected.T, logits, strict=True):
        if (column != UNKNOWN).any():
            weight = label_weight if name == "label" else 1.0
            loss = loss + weight * nn.functional.cross_entropy(logit.float(), column, ignore_index=UNKNOWN)
    return loss / len(names)


def factor_accuracy(
    predicted: Tensor, expected: Tensor, names: Mapping[str, tuple[str, ...]] = FACTORS
) -> dict[str, float]:
    """Share of right predictions per factor, over known targets; both (n, factors). Absent where n is 0."""
    accuracy = {}
    for name, guess, truth in zip(names, predicted.T, expected.T, strict=True):
        shown = truth != UNKNOWN
        if shown.any():
            accuracy[name] = round(float((guess[shown] == truth[shown]).float().mean()), 4)
    return accuracy
