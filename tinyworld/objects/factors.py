"""Scene factors as training targets: class indices, linear heads, losses and accuracies.

`silhouette` is left out: no caption names it and no check asks for it. A companion's colour and side mean nothing
where there is no companion, and a caption may leave factors out: such targets are `UNKNOWN` and cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tinyworld.objects.world import FACTOR_VALUES, Scene

UNKNOWN = -100
FACTORS: dict[str, tuple[str, ...]] = {
    name: tuple(str(value) for value in values) for name, values in FACTOR_VALUES.items() if name != "silhouette"
}


def scene_factors(scene: Scene) -> dict[str, str]:
    """All factors that the image of a scene shows."""
    shown = {name: str(getattr(scene, name)) for name in FACTORS}
    if scene.companion == "none":
        del shown["companion_colour"], shown["relation"]
    return shown


def mirrored(scene: Scene) -> Scene:
    """The scene of the mirror image, for captions and targets (its geometry seed stays that of the original)."""
    return scene.changed(relation="left" if scene.relation == "right" else "right")


def targets(factors: Mapping[str, str], names: Mapping[str, tuple[str, ...]] = FACTORS) -> list[int]:
    """Indices into the values of the named factors, in their order; `UNKNOWN` where a factor is absent."""
    return [values.index(factors[name]) if name in factors else UNKNOWN for name, values in names.items()]


class FactorHeads(nn.Module):
    """One linear head per factor over a pooled feature vector."""

    def __init__(self, features: int, names: Mapping[str, tuple[str, ...]] = FACTORS) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(features, len(values)) for name, values in names.items()})

    def forward(self, features: Tensor) -> list[Tensor]:
        """features (batch, width) → logits per factor, each (batch, number of values)."""
        return [head(features) for head in self.heads.values()]


def factor_loss(
    logits: list[Tensor],
    wanted: Tensor,
    label_weight: float = 1.0,
    names: Mapping[str, tuple[str, ...]] = FACTORS,
) -> Tensor:
    """Mean over factors of the cross-entropy, the label weighted; `wanted` (batch, factors) with `UNKNOWN`."""
    loss = torch.zeros(())
    for name, column, logit in zip(names, wanted.T, logits, strict=True):
        known = int((column != UNKNOWN).sum())
        if known:
            weight = label_weight if name == "label" else 1.0
            loss = loss + weight * nn.functional.cross_entropy(logit.float(), column, ignore_index=UNKNOWN)
    return loss / len(names)


def factor_accuracy(
    predicted: Tensor, wanted: Tensor, names: Mapping[str, tuple[str, ...]] = FACTORS
) -> dict[str, float]:
    """Share of right predictions per factor, over known targets; both (n, factors). Absent where n is 0."""
    result = {}
    for name, guess, truth in zip(names, predicted.T, wanted.T, strict=True):
        known = truth != UNKNOWN
        if known.any():
            result[name] = round(float((guess[known] == truth[known]).float().mean()), 4)
    return result
