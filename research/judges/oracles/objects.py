"""The oracles: two independent models that read the factors of an image, to evaluate generator and checks.

An oracle reads every factor at each of 8 × 8 positions of an image (its class activation maps, arXiv 1512.04150): first
where there is a part of a complete object and where a companion, then their factors at these positions. So it also
localises the object. "Kept" and "shown" mean that both oracles agree. Services and methods never use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForImageClassification, PreTrainedModel

from research.networks.factor_heads import factor_accuracy, split_factors
from research.pictures.augmentation import as_pixel_values
from research.pictures.rendered_once import Pixels
from research.system.folders import ORACLE_WEIGHTS
from shared.chunks import chunks
from tinyworld.domain.scenes import Split, targets
from tinyworld.objects.world import FACTORS, Scene, scene_factors

ORACLES: dict[str, Split] = {"oracle-a": "oracle-a", "oracle-b": "oracle-b"}  # the split that each learnt from
READ: dict[str, tuple[str, ...]] = {**FACTORS, "label": (*FACTORS["label"], "none")}
LOGITS = [f"{name}={value}" for name, values in READ.items() for value in values]
NO_OBJECT = torch.tensor(
    [len(FACTORS["label"]), *[-100] * (len(FACTORS) - 1)]
)  # targets of a picture without an object
PLACES = 8  # per side
OF_OBJECT = ("label", "colour", "size", "pattern")
OF_COMPANION = ("companion", "companion_colour")
IN_PLACE = 0.5  # the least share of the detected object that must lie in the source object's place
_BASE = 1e-3  # weight of a place without a detection; matters only if there is no detection at all


@dataclass(frozen=True, slots=True)
class Readings:
    """What one oracle reads: indices into the values of `READ`, (n, factors), and its probability of each.

    `places` (n, 8, 8): the probability that a place shows a part of a whole object.
    """

    values: Tensor
    probabilities: Tensor
    places: Tensor

    def accuracy(self, truth: Tensor) -> dict[str, float]:
        """Share of right readings per factor, where `truth` (n, factors) is known."""
        return factor_accuracy(self.values, truth)

    def share_none(self) -> float:
        """Share of the images in which it detects no complete object of any class."""
        return round(float((self.values[:, 0] == NO_OBJECT[0]).float().mean()), 4)


@cache
def load_oracle(name: str) -> PreTrainedModel:
    """One shipped oracle, in float32 and eval mode."""
    model = AutoModelForImageClassification.from_pretrained(ORACLE_WEIGHTS / name, dtype=torch.float32)
    return model.eval()


def load_oracles() -> list[PreTrainedModel]:
    """Both."""
    return [load_oracle(name) for name in ORACLES]


@torch.no_grad()
def readings(oracle: PreTrainedModel, images: Sequence[Pixels]) -> Readings:
    """An oracle's readings of RGB images of 128 × 128 × 3."""
    values, probabilities, places = [], [], []
    for chunk in chunks(images, 50):
        located = logits_at_places(oracle, as_pixel_values(np.stack(chunk)))
        best = [logit.softmax(1).max(1) for logit in pool(located)]
        values.append(torch.stack([column.indices for column in best], dim=1))
        probabilities.append(torch.stack([column.values for column in best], dim=1))
        places.append(object_places(located))
    return Readings(torch.cat(values), torch.cat(probabilities), torch.cat(places))


def logits_at_places(oracle: nn.Module, pixel_values: Tensor) -> Tensor:
    """Logits of all values of all factors at each place, (n, all values, 8, 8)."""
    features = oracle.base_model(pixel_values).last_hidden_state  # type: ignore[operator]
    weight, bias = (oracle.get_parameter(f"classifier.1.{name}") for name in ("weight", "bias"))
    return nn.functional.conv2d(features, weight[..., None, None], bias)


def object_places(located: Tensor) -> Tensor:
    """Logits at places → the probability that each shows a part of a whole object, (n, 8, 8)."""
    return 1 - factor_logits(located, "label").softmax(1)[:, -1]


def factor_logits(logits: Tensor, factor: str) -> Tensor:
    """The logits of one factor among all, along dimension 1."""
    return split_factors(logits, READ)[list(READ).index(factor)]


def pool(located: Tensor) -> list[Tensor]:
    """Logits at places → logits (n, values) per factor of `READ`, read where they can be seen."""
    return [
        (logits * weight[:, None]).sum((2, 3))
        for logits, weight in zip(split_factors(located, READ), place_weights(located), strict=True)
    ]


@torch.no_grad()
def place_weights(located: Tensor) -> list[Tensor]:
    """Logits at places → per factor how much each place counts, (n, 8, 8), summing to 1.

    The object's factors are read where the object is, the companion's where the companion is, the others everywhere.
    """
    of_object = object_places(located) + _BASE
    of_companion = 1 - factor_logits(located, "companion").softmax(1)[:, 0] + _BASE
    chosen = [
        of_object if factor in OF_OBJECT else of_companion if factor in OF_COMPANION else torch.ones_like(of_object)
        for factor in READ
    ]
    return [weight / weight.sum((1, 2), keepdim=True) for weight in chosen]


def judge(images: Sequence[Pixels]) -> list[dict[str, str | None]]:
    """Per image, the value of every factor on which both oracles agree, else None.

    The label may be "none": no whole object. A companion's colour and side are left out where both see none.
    """
    first, second = (readings(oracle, images).values for oracle in load_oracles())
    return [_agreement(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]


def in_place(images: Sequence[Pixels], object_masks: Sequence[NDArray[np.bool_]]) -> list[bool]:
    """Whether both oracles detect the object of each image where a mask (128 × 128) has it.

    Each must detect an object, with at least `IN_PLACE` of it at positions that the mask touches.
    """
    verdict = torch.ones(len(images), dtype=torch.bool)
    for oracle in load_oracles():
        maps = readings(oracle, images).places
        touched = torch.from_numpy(np.stack([places_touched(mask, maps.shape[-1]) for mask in object_masks]))
        inside, everywhere = (maps * touched).sum((1, 2)), maps.sum((1, 2))
        verdict &= (maps.amax((1, 2)) > 0.5) & (inside >= IN_PLACE * everywhere)
    return verdict.tolist()


def places_touched(mask: NDArray[np.bool_], side: int = PLACES) -> NDArray[np.bool_]:
    """Positions (side × side) that a mask (128 × 128) covers by a tenth or more."""
    return np.asarray(cv2.resize(mask.astype(np.float32), (side, side), interpolation=cv2.INTER_AREA) >= 0.1)


def is_kept(scene: Scene, judged: Mapping[str, str | None], factor: str) -> bool:
    """Whether both oracles read the scene's own value of a factor; a factor that the scene does not show is kept."""
    true_values = scene_factors(scene)
    return factor not in true_values or judged.get(factor) == true_values[factor]


def targets_with_none(scene: Scene) -> Tensor:
    """Targets of a whole scene, (factors,)."""
    return torch.tensor(targets(scene_factors(scene), FACTORS))


def _agreement(first: list[int], second: list[int]) -> dict[str, str | None]:
    agreed = {
        name: values[a] if a == b else None for (name, values), a, b in zip(READ.items(), first, second, strict=True)
    }
    if agreed["companion"] == "none":
        del agreed["companion_colour"], agreed["relation"]
    return agreed
