"""Small, randomly initialised classifiers, a CLIP and a SigLIP, in Hub layout."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    CLIPConfig,
    CLIPModel,
    ResNetConfig,
    ResNetForImageClassification,
    SiglipConfig,
    SiglipModel,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil

from tinyworld.networks.clip_tokenizer import learn_clip_tokenizer

CAPTIONS = ["A red car stands on a beach. It rains.", "A blue bus drives through a city at night."] * 4
CLASSES = ["car", "bus", "boat"]


def write_classifier(folder: Path, seed: int, embedding_size: int = 8) -> None:
    """A ResNet over `CLASSES` with the preprocessing that it brings."""
    torch.manual_seed(seed)
    config = ResNetConfig(
        embedding_size=embedding_size,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        id2label=dict(enumerate(CLASSES)),
    )
    ResNetForImageClassification(config).save_pretrained(folder)
    ConvNextImageProcessorPil(size={"shortest_edge": 64}, crop_pct=1.0).save_pretrained(folder)


def write_scorer(folder: Path, kind: str = "clip") -> None:
    """A CLIP or a SigLIP with its tokenizer and preprocessing."""
    torch.manual_seed(3)
    tokenizer = learn_clip_tokenizer(CAPTIONS, 50, folder)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    text = tower | ids | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    vision = tower | {"image_size": 64, "patch_size": 16}
    if kind == "clip":
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    else:
        model = SiglipModel(SiglipConfig(text_config=text | {"projection_size": 16}, vision_config=vision))
    model.save_pretrained(folder)
    size = {"height": 64, "width": 64}
    CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False).save_pretrained(folder)
