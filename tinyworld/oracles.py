"""The oracles: what two independent judges read in a picture, for benchmarks of the generator and of the checks.

"Kept" and "shown" mean that both agree. The services and methods never ask them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForImageClassification, PreTrainedModel

from tinyworld.factors import FACTORS, factor_accuracy, scene_factors, targets
from tinyworld.model_card import WEIGHTS
from tinyworld.pictures import Pixels, as_pixel_values
from tinyworld.world import Scene, Split

ORACLES: dict[str, Split] = {"oracle-a": "oracle-a", "oracle-b": "oracle-b"}  # the split that each learnt from
READ: dict[str, tuple[str, ...]] = {**FACTORS, "label": (*FACTORS["label"], "none")}
LOGITS = [f"{name}={value}" for name, values in READ.items() for value in values]
NONE = torch.tensor([len(FACTORS["label"]), *[-100] * (len(FACTORS) - 1)])  # targets of a picture without an object


@dataclass(frozen=True, slots=True)
class Readings:
    """What one oracle reads: indices into the values of `READ`, (n, factors), and its probability of each."""

    values: Tensor
    probabilities: Tensor

    def accuracy(self, wanted: Tensor) -> dict[str, float]:
        """Share of right readings per factor, where `wanted` (n, factors) is known."""
        return factor_accuracy(self.values, wanted)

    def share_none(self) -> float:
        """Share of the pictures in which it sees no whole object of any class."""
        return round(float((self.values[:, 0] == NONE[0]).float().mean()), 4)


@cache
def load_oracle(name: str) -> PreTrainedModel:
    """One shipped oracle, in float32 and eval mode."""
    model = AutoModelForImageClassification.from_pretrained(WEIGHTS / "oracles" / name, dtype=torch.float32)
    return model.eval()


def load_oracles() -> list[PreTrainedModel]:
    """Both."""
    return [load_oracle(name) for name in ORACLES]


@torch.no_grad()
def readings(oracle: PreTrainedModel, images: Sequence[Pixels]) -> Readings:
    """What an oracle reads in pictures of 128 × 128 × 3, RGB."""
    values, probabilities = [], []
    for start in range(0, len(images), 50):
        logits = oracle(pixel_values=as_pixel_values(np.stack(images[start : start + 50]))).logits
        best = [logit.softmax(1).max(1) for logit in split_readings(logits)]
        values.append(torch.stack([column.indices for column in best], dim=1))
        probabilities.append(torch.stack([column.values for column in best], dim=1))
    return Readings(torch.cat(values), torch.cat(probabilities))


def judge(images: Sequence[Pixels]) -> list[dict[str, str | None]]:
    """Per picture, the value of every factor on which both oracles agree, None where they do not.

    The label may be "none": no whole object. A companion's colour and side are left out where both see none.
    """
    first, second = (readings(oracle, images).values for oracle in load_oracles())
    return [_agreed(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]


def kept(scene: Scene, judged: Mapping[str, str | None], factor: str) -> bool:
    """Whether both oracles read the scene's own value of a factor; a factor that the scene does not show is kept."""
    shown = scene_factors(scene)
    return factor not in shown or judged.get(factor) == shown[factor]


def targets_with_none(scene: Scene) -> Tensor:
    """Targets of a whole scene, (factors,)."""
    return torch.tensor(targets(scene_factors(scene)))


def split_readings(logits: Tensor) -> list[Tensor]:
    """Concatenated logits (batch, all values) → per factor, in the order of `READ`."""
    return list(torch.split(logits, [len(values) for values in READ.values()], dim=1))


def _agreed(first: list[int], second: list[int]) -> dict[str, str | None]:
    agreed = {
        name: values[a] if a == b else None for (name, values), a, b in zip(READ.items(), first, second, strict=True)
    }
    if agreed["companion"] == "none":
        del agreed["companion_colour"], agreed["relation"]
    return agreed
