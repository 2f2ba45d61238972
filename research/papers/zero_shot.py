"""CLIP as a zero-shot classifier in one ONNX file: the image tower, with class prompts' embeddings as its last layer.

LANCE tests CLIP this way (Radford et al. 2021, section 3.1): logits are the scaled cosines between the image and
"a photo of a CLASS".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import CLIPImageProcessorPil, CLIPModel, CLIPTokenizerFast

from shared.chunks import chunks
from shared.schemas.models import ONNX_NAME

TEMPLATE = "a photo of a {}."
TEXTS = 64  # texts embedded at a time


class ZeroShotHead(torch.nn.Module):
    """Images (batch × 3 × side × side) → logits (batch × classes)."""

    def __init__(self, model: CLIPModel, class_embeddings: torch.Tensor) -> None:
        super().__init__()
        self.vision, self.projection = model.vision_model, model.visual_projection
        self.register_buffer("weight", model.logit_scale.detach().exp() * class_embeddings)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """The scaled cosine of each image with each class."""
        embedded = self.projection(self.vision(pixel_values=pixel_values).pooler_output)
        logits: torch.Tensor = (embedded / embedded.norm(dim=-1, keepdim=True)) @ self.weight.T
        return logits


@torch.no_grad()
def class_embeddings(model: CLIPModel, tokenizer: CLIPTokenizerFast, classes: Sequence[str]) -> torch.Tensor:
    """Unit embeddings of the class prompts: classes × width."""
    rows = []
    for names in chunks(classes, TEXTS):
        texts = [TEMPLATE.format(name) for name in names]
        tokens = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        pooled = model.text_model(**tokens).pooler_output
        rows.append(model.text_projection(pooled))
    embeddings: torch.Tensor = torch.nn.functional.normalize(torch.cat(rows), dim=-1)
    return embeddings


def write_zero_shot(weights: Path, classes: Sequence[str], folder: Path) -> None:
    """Write `model.onnx` and `preprocessor_config.json` of a zero-shot classifier over CLIP weights in Hub layout."""
    model = CLIPModel.from_pretrained(
        weights, use_safetensors=True, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = CLIPTokenizerFast.from_pretrained(weights)
    head = ZeroShotHead(model, class_embeddings(model, tokenizer, classes)).eval()
    side = model.config.vision_config.image_size
    folder.mkdir(parents=True, exist_ok=True)
    CLIPImageProcessorPil.from_pretrained(weights).save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is the old one, which needs no further library
        torch.onnx.export(
            head,
            (torch.zeros(1, 3, side, side),),
            folder / ONNX_NAME,
            dynamo=False,
            input_names=["pixel_values"],
            output_names=["logits"],
            dynamic_axes={"pixel_values": {0: "batch"}, "logits": {0: "batch"}},
        )
