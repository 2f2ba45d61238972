"""The models of the yardstick read pictures as they were trained to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoImageProcessor

from research.objects.pictures import render_pair
from research.train.classifier import new_classifier
from research.yardstick import classifiers
from research.yardstick.plants import MODELS
from tinyworld.objects.world import sample_scene


def test_a_saved_model_reads_pictures_at_the_side_of_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classifiers, "YARDSTICK", tmp_path)
    planned = MODELS[0]
    classifiers.save(new_classifier(), planned, {"steps": 0})
    image, _ = render_pair(sample_scene("demo", 0))

    processor = AutoImageProcessor.from_pretrained(classifiers.model_folder(planned.name), backend="pil")
    values = processor([image], return_tensors="pt").pixel_values

    trained_on = classifiers.small([image])
    assert values.shape == trained_on.shape
    assert (values - trained_on).abs().mean() < 0.05  # two filters shrink it: another side would differ in shape
    assert torch.isfinite(values).all()
