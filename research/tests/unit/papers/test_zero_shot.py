"""CLIP in one ONNX file answers as CLIP itself does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import CLIPModel, CLIPProcessor

from research.papers.zero_shot import TEMPLATE, write_zero_shot
from shared.schemas.models import ONNX_NAME, PROCESSOR_NAME

WEIGHTS = Path("tinyworld/weights/scorer")
CLASSES = ["car", "bus", "boat"]


@pytest.mark.parametrize("batch", [1, 3])
def test_logits_are_those_of_clip(tmp_path: Path, batch: int) -> None:
    write_zero_shot(WEIGHTS, CLASSES, tmp_path)
    side = CLIPModel.from_pretrained(WEIGHTS).config.vision_config.image_size
    pixels = np.random.default_rng(batch).normal(size=(batch, 3, side, side)).astype(np.float32)

    session = onnxruntime.InferenceSession(tmp_path / ONNX_NAME, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"pixel_values": pixels})

    processor = CLIPProcessor.from_pretrained(WEIGHTS)
    texts = processor(
        text=[TEMPLATE.format(name) for name in CLASSES], return_tensors="pt", padding=True, truncation=True
    )
    with torch.no_grad():
        expected = CLIPModel.from_pretrained(WEIGHTS, dtype=torch.float32)(
            **texts, pixel_values=torch.from_numpy(pixels)
        )
    np.testing.assert_allclose(logits, expected.logits_per_image.numpy(), atol=1e-3)
    assert (tmp_path / PROCESSOR_NAME).is_file()
