"""Segmenters under test in the evaluator: transformers folders and ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import SegformerConfig, SegformerForSemanticSegmentation
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil

from evaluator_service.models_under_test.kinds.segmentation import ImageSegmenter, OnnxSegmenter
from evaluator_service.models_under_test.loading import load_folder, try_out
from shared.problems import InvalidInput
from tests.support.model_folders import PICTURES, written
from tests.support.small_evaluator import CLASSES
from tests.support.small_packages import Logits, as_onnx, changed, onnx_files


def test_a_segmenter_predicts_a_class_for_every_pixel(tmp_path: Path) -> None:
    sizes = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "num_attention_heads": [1] * 4, "decoder_hidden_size": 8}
    names = {0: "road", 1: "car", 2: "bus"}
    SegformerForSemanticSegmentation(SegformerConfig(**sizes, id2label=names)).save_pretrained(tmp_path)
    SegformerImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(tmp_path)
    description = {"task": "segmentation", "classes": {"vehicle": [1, 2]}}
    model = load_folder(written(tmp_path, {}, **description), device="cpu")
    assert isinstance(model, ImageSegmenter)
    assert model.classes == ["road", "vehicle"]
    maps = model.run(PICTURES)
    assert [label_map.shape for label_map in maps] == [picture.shape[:2] for picture in PICTURES]
    assert set(np.unique(np.concatenate([label_map.ravel() for label_map in maps]))) <= {0, 1}


class FullSize(torch.nn.Module):
    """A segmenter whose logits have its input's size, and which answers a second thing, as torchvision's do."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = Logits(model)

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(pixel_values)
        return torch.nn.functional.interpolate(logits, size=(64, 64), mode="bilinear", align_corners=False), -logits


@pytest.fixture(scope="module")
def segformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    folder = tmp_path_factory.mktemp("segformer")
    sizes = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "num_attention_heads": [1] * 4, "decoder_hidden_size": 8}
    config = SegformerConfig(**sizes, id2label={0: "road", 1: "car", 2: "bus"}, initializer_range=0.5)
    SegformerForSemanticSegmentation(config).save_pretrained(folder)
    SegformerImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(folder)
    return folder


def segmenter(folder: Path) -> ImageSegmenter | OnnxSegmenter:
    model = load_folder(folder, device="cpu")
    assert isinstance(model, ImageSegmenter | OnnxSegmenter)
    try_out(model)
    return model


@pytest.mark.slow
def test_an_onnx_segmenter_predicts_what_transformers_predicts(segformer: Path, tmp_path: Path) -> None:
    model = SegformerForSemanticSegmentation.from_pretrained(segformer).eval()
    processor = SegformerImageProcessorPil.from_pretrained(segformer)
    with torch.inference_mode():
        answers = [model(**processor(images=picture, return_tensors="pt")) for picture in PICTURES]
    expected = [
        processor.post_process_semantic_segmentation(answer, target_sizes=[picture.shape[:2]])[0].numpy()
        for answer, picture in zip(answers, PICTURES, strict=True)
    ]
    assert all(len(np.unique(label_map)) > 1 for label_map in expected), "no map is one class"
    beside = {name: (segformer / name).read_bytes() for name in ("config.json", "preprocessor_config.json")}
    quarter = {"model.onnx": as_onnx(Logits(model)), **beside}
    full = {"model.onnx": as_onnx(FullSize(model), names=["out", "aux"]), **beside}
    fixed = {"model.onnx": as_onnx(Logits(model), batch=2), **beside}
    same_size = slice(2, 3)  # the picture of the input's size: nothing is resized twice
    for name, files, where in (("quarter", quarter, slice(3)), ("fixed", fixed, slice(3)), ("full", full, same_size)):
        onnx_segmenter = segmenter(written(tmp_path / name, files, task="segmentation"))
        assert isinstance(onnx_segmenter, OnnxSegmenter)
        assert onnx_segmenter.classes == ["road", "car", "bus"]
        for label_map, reference in zip(onnx_segmenter.run(PICTURES)[where], expected[where], strict=True):
            assert label_map.shape == reference.shape
            assert (label_map == reference).mean() > 0.999, "but for ties"
    merged = segmenter(written(tmp_path / "merged", quarter, task="segmentation", classes={"vehicle": [1, 2]}))
    assert merged.classes == ["road", "vehicle"]
    assert ((merged.run(PICTURES)[0] == 1) == (expected[0] > 0)).mean() > 0.999


@pytest.mark.slow
def test_models_that_do_not_segment_whole_images_are_refused(segformer: Path, resnet: Path, tmp_path: Path) -> None:
    processor = (segformer / "preprocessor_config.json").read_bytes()
    logits = as_onnx(Logits(SegformerForSemanticSegmentation.from_pretrained(segformer)))
    changed(processor, do_center_crop=True)
    cut = {"preprocessing": {"height": 64, "width": 64, "fit": "crop"}, "classes": list("abc")}
    files = {"model.onnx": logits, "preprocessor_config.json": processor}
    cases: list[tuple[dict[str, bytes], dict[str, Any], str]] = [
        (files, {"classes": list("abc")}, r"pictures × classes \("),
        (files, {"task": "segmentation"}, "3 outputs without names"),
        (files, {"task": "segmentation", "classes": ["a", "b"]}, "has 3 outputs, but `classes` names 2"),
        ({"model.onnx": logits}, {"task": "segmentation", **cut}, "needs the whole image"),
        (
            {**files, "preprocessor_config.json": changed(processor, do_center_crop=True)},
            {"task": "segmentation"},
            "crops",
        ),
        (onnx_files(resnet), {"task": "segmentation", "classes": CLASSES}, "pictures × classes × height × width"),
    ]
    for number, (content, description, words) in enumerate(cases):
        with pytest.raises(InvalidInput, match=words):
            load_folder(written(tmp_path / str(number), content, **description), device="cpu")
