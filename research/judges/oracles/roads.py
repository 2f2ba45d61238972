"""The oracles of driving scenes: two independent models that read the look of a scene, to judge generated images.

They are trained on demand by `research.train.oracle --domain roads`; a look counts only if both agree. Services and
methods never use them. What is where is judged by two segmenters (`research.judges.segmentation`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForImageClassification, PreTrainedModel

from research.networks.factor_heads import split_factors
from research.pictures.augmentation import as_pixel_values
from research.system.folders import ROAD_MODELS
from shared.chunks import chunks
from tinyworld.drawing.canvas import Image
from tinyworld.roads.world import LOOKS

READ: Mapping[str, tuple[str, ...]] = {
    name: LOOKS[name] for name in ("time", "weather", "season", "surface", "style", "buildings")
}
# The segmenter whose split and degradations each one shares.
ORACLES: Mapping[str, str] = {"reader-a": "oracle-a", "reader-b": "oracle-b"}
LOGITS = [f"{name}={value}" for name, values in READ.items() for value in values]


@torch.inference_mode()
def readings(model: PreTrainedModel, images: Sequence[Image]) -> Tensor:
    """An oracle's readings of images of 128 x 128 x 3: indices into the values of `READ`, (n x factors)."""
    model.eval()
    batches = []
    for chunk in chunks(images, 50):
        logits = model(pixel_values=as_pixel_values(np.stack(chunk))).logits
        by_factor = split_factors(logits, READ)
        batches.append(torch.stack([of_factor.argmax(1) for of_factor in by_factor], dim=1))
    return torch.cat(batches)


def judge(images: Sequence[Image]) -> list[dict[str, str | None]]:
    """Per image (128 x 128 x 3) the value of every factor on which both oracles agree, else None.

    Raises SystemExit with the command that makes an oracle if one is missing.
    """
    first, second = (readings(model, images).tolist() for model in load_oracles())
    return [
        {name: values[a] if a == b else None for (name, values), a, b in zip(READ.items(), *pair, strict=True)}
        for pair in zip(first, second, strict=True)
    ]


def load_oracles() -> list[PreTrainedModel]:
    """Both, in float32; raises SystemExit if one is missing."""
    return [_load(trained_folder(name, "oracle")) for name in ORACLES]


def trained_folder(name: str, command: str) -> Path:
    """The folder of a road model that `command` trains; raises SystemExit with that command if it is missing."""
    folder = ROAD_MODELS / name
    if not (folder / "config.json").exists():
        raise SystemExit(f"there is no {folder}; make it by `python -m research.train.{command} --domain roads {name}`")
    return folder


@cache
def _load(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32)
    return model
