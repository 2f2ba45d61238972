"""The readers: two independent models that read the look of a driving scene, to judge generated images.

They are trained on demand by `tinyworld.train.road_reader`; a look counts only if both agree. Services and methods
never use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForImageClassification,
    PreTrainedModel,
    RegNetConfig,
    RegNetForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)

from tinyworld.objects.drawing.canvas import Image
from tinyworld.objects.pictures import as_pixel_values
from tinyworld.roads.world import LOOKS
from tinyworld.train.road_segmenter import MODELS

READ: Mapping[str, tuple[str, ...]] = {
    name: LOOKS[name] for name in ("time", "weather", "season", "surface", "style", "buildings")
}
# The segmenter whose split and degradations each one shares.
READERS: Mapping[str, str] = {"reader-a": "oracle-a", "reader-b": "oracle-b"}
_LOGITS = [f"{name}={value}" for name, values in READ.items() for value in values]


def new_reader(name: str) -> PreTrainedModel:
    """An untrained reader of images of 128 pixels, 0.5 (ResNet) or 0.2 (RegNet) million parameters.

    One linear head over the pooled features has a logit per value of every factor of `READ`, in their order.
    """
    labels = {"id2label": dict(enumerate(_LOGITS)), "label2id": {label: place for place, label in enumerate(_LOGITS)}}
    sizes = {"embedding_size": 32, "hidden_sizes": [32, 64, 96], "depths": [1, 1, 3]}
    model: PreTrainedModel
    if name == "reader-a":
        model = ResNetForImageClassification(ResNetConfig(**sizes, **labels, layer_type="basic"))
    else:
        model = RegNetForImageClassification(RegNetConfig(**sizes, **labels, groups_width=32, layer_type="y"))
    return model.to(memory_format=torch.channels_last)


def by_factor(logits: Tensor) -> list[Tensor]:
    """Logits (n x all values) of each factor of `READ`, (n x its values)."""
    return list(torch.split(logits, [len(values) for values in READ.values()], dim=1))


@torch.inference_mode()
def readings(model: PreTrainedModel, images: Sequence[Image]) -> Tensor:
    """One reader's readings of images of 128 x 128 x 3: indices into the values of `READ`, (n x factors)."""
    model.eval()
    batches = []
    for start in range(0, len(images), 50):
        logits = model(pixel_values=as_pixel_values(np.stack(images[start : start + 50]))).logits
        batches.append(torch.stack([logits_of_factor.argmax(1) for logits_of_factor in by_factor(logits)], dim=1))
    return torch.cat(batches)


def looks(images: Sequence[Image]) -> list[dict[str, str | None]]:
    """Per image (128 x 128 x 3) the value of every factor on which both readers agree, else None.

    Raises SystemExit with the command that makes a reader where one is missing.
    """
    first, second = (readings(model, images).tolist() for model in load_readers())
    return [
        {name: values[a] if a == b else None for (name, values), a, b in zip(READ.items(), *both, strict=True)}
        for both in zip(first, second, strict=True)
    ]


def load_readers() -> list[PreTrainedModel]:
    """Both, in float32; raises SystemExit where one is missing."""
    return [_loaded(trained_folder(name, "road_reader")) for name in READERS]


def trained_folder(name: str, command: str) -> Path:
    """The folder of a road model that `command` trains; raises SystemExit with that command if it is missing."""
    folder = MODELS / name
    if not (folder / "config.json").exists():
        raise SystemExit(f"there is no {folder}; make it by `python -m tinyworld.train.{command} {name}`")
    return folder


@cache
def _loaded(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32)
    return model
