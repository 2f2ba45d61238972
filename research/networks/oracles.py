"""The oracles before training: a ResNet and a RegNet with one logit per value of every factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from transformers import (
    PreTrainedModel,
    RegNetConfig,
    RegNetForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)


def new_oracle(architecture: Literal["resnet", "regnet"], logits: Sequence[str]) -> PreTrainedModel:
    """An untrained oracle of images of 128 pixels, 0.5 (ResNet) or 0.2 (RegNet) million parameters, 8 x 8 places.

    One linear head over the pooled features has the named logits, in their order.
    """
    labels = {"id2label": dict(enumerate(logits)), "label2id": {label: place for place, label in enumerate(logits)}}
    sizes = {"embedding_size": 32, "hidden_sizes": [32, 64, 96], "depths": [1, 1, 3]}
    model: PreTrainedModel
    if architecture == "resnet":
        model = ResNetForImageClassification(ResNetConfig(**sizes, **labels, layer_type="basic"))
    else:
        model = RegNetForImageClassification(RegNetConfig(**sizes, **labels, groups_width=32, layer_type="y"))
    return model.to(memory_format=torch.channels_last)
