"""The segmenters of both domains: their architectures, and inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    ResNetConfig,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    UperNetConfig,
    UperNetForSemanticSegmentation,
)

from research.pictures.augmentation import as_pixel_values
from shared.chunks import chunks
from tinyworld.drawing.canvas import Image
from tinyworld.roads.world import CLASSES

Architecture = Literal["segformer", "fine segformer", "upernet", "slim upernet"]
REGIONS = ("background", "object", "companion")
_NAMES = dict(enumerate(CLASSES))
_INDICES = {name: place for place, name in _NAMES.items()}


def new_road_segmenter(architecture: Architecture) -> PreTrainedModel:
    """An untrained segmenter of driving scenes of 128 pixels; 0.4 to 1 million parameters."""
    if architecture in ("upernet", "slim upernet"):
        slim = architecture == "slim upernet"
        backbone = ResNetConfig(
            embedding_size=24,
            hidden_sizes=[20, 40, 64, 96] if slim else [24, 48, 80, 112],
            depths=[2, 2, 2, 2],
            layer_type="basic",
            out_features=["stage1", "stage2", "stage3", "stage4"],
        )
        config = UperNetConfig(
            backbone_config=backbone,
            hidden_size=40 if slim else 48,
            pool_scales=[1, 2, 4],
            use_auxiliary_head=False,
            id2label=_NAMES,
            label2id=_INDICES,
        )
        return UperNetForSemanticSegmentation(config).to(memory_format=torch.channels_last)
    fine = architecture == "fine segformer"  # a place for every second pixel rather than for every fourth
    return SegformerForSemanticSegmentation(
        SegformerConfig(
            depths=[1, 2, 2, 1],
            hidden_sizes=[16, 32, 64, 96] if fine else [24, 48, 80, 96],
            num_attention_heads=[1, 2, 2, 4],
            sr_ratios=[8, 4, 2, 1],
            strides=[2 if fine else 4, 2, 2, 2],
            decoder_hidden_size=48 if fine else 96,
            drop_path_rate=0.0,
            classifier_dropout_prob=0.0,
            id2label=_NAMES,
            label2id=_INDICES,
        )
    )


def new_object_segmenter() -> SegformerForSemanticSegmentation:
    """An untrained segmenter of objects and companions, 0.7 million parameters.

    Its logits are (batch, 3, 32, 32) for images of 128 pixels.
    """
    config = SegformerConfig(
        depths=[1, 2, 2, 1],
        hidden_sizes=[24, 48, 80, 96],
        num_attention_heads=[1, 2, 2, 4],
        sr_ratios=[8, 4, 2, 1],
        decoder_hidden_size=96,
        drop_path_rate=0.0,
        classifier_dropout_prob=0.0,
        id2label=dict(enumerate(REGIONS)),
        label2id={name: place for place, name in enumerate(REGIONS)},
    )
    return SegformerForSemanticSegmentation(config)


def segment(model: nn.Module, pixel_values: Tensor) -> Tensor:
    """Logits (batch x classes x height x width) at the size of the images, enlarged bilinearly."""
    logits = model(pixel_values=pixel_values).logits.float()
    return nn.functional.interpolate(logits, pixel_values.shape[-2:], mode="bilinear", align_corners=False)


@torch.inference_mode()
def class_masks(model: nn.Module, images: Sequence[Image]) -> Image:
    """A segmenter's class masks of images of one size (n x h x w, indices into `CLASSES`)."""
    model.eval()
    batches = [np.stack(chunk) for chunk in chunks(images, 25)]
    masks = [segment(model, as_pixel_values(batch)).argmax(1).numpy().astype(np.uint8) for batch in batches]
    return np.concatenate(masks)
