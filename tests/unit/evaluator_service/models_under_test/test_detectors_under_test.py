"""Detectors under test in the evaluator: transformers folders, and what servers answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from transformers import (
    DetrConfig,
    DetrForObjectDetection,
    PreTrainedModel,
    ResNetConfig,
    RTDetrConfig,
    RTDetrForObjectDetection,
    YolosConfig,
    YolosForObjectDetection,
)
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil
from transformers.models.rt_detr.configuration_rt_detr_resnet import RTDetrResNetConfig
from transformers.models.rt_detr.image_processing_pil_rt_detr import RTDetrImageProcessorPil
from transformers.models.yolos.image_processing_pil_yolos import YolosImageProcessorPil

from evaluator_service.models_under_test.kinds.detection import DETECTION, ImageDetector, answer_of
from evaluator_service.models_under_test.loading import load_folder, try_out
from evaluator_service.models_under_test.outputs import finite
from shared.media.images import encode
from shared.problems import InvalidInput, NotFinite
from tests.support.model_folders import PICTURES, written

NAMES = {0: "person", 1: "car", 2: "bus"}
SMALL = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}


def detr() -> tuple[PreTrainedModel, Any]:
    backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8] * 4, depths=[1] * 4, out_features=["stage4"])
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = DetrConfig(backbone_config=backbone, num_queries=12, id2label=NAMES, **SMALL, **layers)
    return DetrForObjectDetection(config), DetrImageProcessorPil(size={"shortest_edge": 64, "longest_edge": 96})


def yolos() -> tuple[PreTrainedModel, Any]:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = YolosConfig(**sizes, num_detection_tokens=9, image_size=[64, 64], patch_size=16, id2label=NAMES)
    return YolosForObjectDetection(config), YolosImageProcessorPil(size={"shortest_edge": 64, "longest_edge": 96})


def rt_detr() -> tuple[PreTrainedModel, Any]:
    backbone = RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8] * 4, depths=[1] * 4, out_features=["stage2", "stage3", "stage4"]
    )
    config = RTDetrConfig(
        backbone_config=backbone,
        encoder_in_channels=[8, 8, 8],
        encoder_hidden_dim=16,
        decoder_in_channels=[16, 16, 16],
        num_queries=9,
        num_denoising=0,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        decoder_layers=1,
        id2label=NAMES,
        **SMALL,
    )
    return RTDetrForObjectDetection(config), RTDetrImageProcessorPil(size={"height": 64, "width": 64})


@pytest.fixture(params=[detr, yolos, rt_detr], ids=lambda made: made.__name__)
def detector(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(5)
    for part in request.param():
        part.save_pretrained(tmp_path)
    return written(tmp_path, {}, kind="detection")


def test_a_detector_of_transformers_answers_as_its_own_post_processing(detector: Path) -> None:
    model = load_folder(detector, device="cpu")
    assert isinstance(model, ImageDetector)
    assert model.classes == [*NAMES.values()]
    try_out(model)
    answers = model.run(PICTURES)
    for picture, answer in zip(PICTURES, answers, strict=True):
        inputs = model._processor(images=picture, return_tensors="pt")
        with torch.inference_mode():
            outputs = model._model(inputs["pixel_values"])
        (expected,) = model._processor.post_process_object_detection(outputs, 0.0, [picture.shape[:2]])
        used = answer[answer[:, 4] > 0]
        order = torch.argsort(-expected["scores"], stable=True)
        assert len(used) == len(order) > 0
        np.testing.assert_allclose(used[:, :4], expected["boxes"][order], atol=1e-3)
        np.testing.assert_allclose(used[:, 4], expected["scores"][order], atol=1e-5)
    reply = DETECTION.reply(model.classes, answers)
    assert [len(boxes) for boxes in reply.boxes] == [int((answer[:, 4] > 0).sum()) for answer in answers]


@pytest.mark.slow
def test_outputs_of_one_name_are_one_class_and_one_class_is_enough(tmp_path: Path) -> None:
    torch.manual_seed(5)
    for part in rt_detr():
        part.save_pretrained(tmp_path)
    model = load_folder(written(tmp_path, {}, kind="detection", classes={"thing": [0, 1, 2]}), device="cpu")
    assert model.classes == ["thing"]
    for answer in model.run(PICTURES):
        boxes = answer[answer[:, 4] > 0, :4]
        assert len(boxes) == len(np.unique(boxes, axis=0)), "each box once, though several outputs found it"


def test_an_image_whose_boxes_are_not_finite_fails_alone() -> None:
    sound = answer_of(np.array([[1, 2, 3, 4.0]]), np.array([0.5]), np.array([0]))
    broken = answer_of(np.array([[1, 2, np.nan, 4.0]]), np.array([0.5]), np.array([0]))
    assert [isinstance(answer, NotFinite) for answer in finite([sound, broken])] == [False, True]


class Wrong:
    """A detector that answers what a function of its batch returns."""

    kind = "detection"
    classes: ClassVar[list[str]] = ["car"]

    def __init__(self, boxes: Any) -> None:
        self.run = lambda images: [
            answer_of(np.array(found[0], float), np.array(found[1]), np.zeros(len(found[0]), int))
            for found in (boxes(number, image, len(images)) for number, image in enumerate(images))
        ]


def whole(image: Any, score: float = 0.5) -> tuple[list[list[float]], list[float]]:
    return [[1.0, 2.0, 40.0 + float(image[0, 0, 0]) / 16, 50.0]], [score]


@pytest.mark.parametrize(
    ("boxes", "words"),
    [
        (lambda number, image, size: whole(image, 3.5), "scores from"),
        (lambda number, image, size: ([[0.1, 0.1, 0.1 + image[0, 0, 0] / 255, 0.9]], [0.5]), "shares of the image"),
        (lambda number, image, size: ([[500, 500, 600 + float(image[0, 0, 0]), 700]], [0.5]), "outside the image"),
        (lambda number, image, size: ([[30.0 + image[0, 0, 0], 30, 10, 5]], [0.5]), "edges"),
        (lambda number, image, size: ([[1, 2, 30, 40]], [0.5]), "mirror image"),
        (lambda number, image, size: ([[1, 2, 9, 9]] if size == 1 else [[30, 30, 60, 60]], [0.5]), "image alone"),
    ],
)
def test_a_detector_of_impossible_answers_is_refused(boxes: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        try_out(Wrong(boxes))  # type: ignore[arg-type]
    try_out(Wrong(lambda number, image, size: whole(image)))  # type: ignore[arg-type]
    try_out(Wrong(lambda number, image, size: (np.zeros((0, 4)), np.zeros(0))))  # type: ignore[arg-type]


BOX = {"label": "car", "score": 0.75, "box": [1, 2, 30.5, 40]}
HUB_BOX = {**BOX, "box": {"xmin": 1, "ymin": 2, "xmax": 30.5, "ymax": 40}}


@pytest.mark.parametrize(
    ("body", "images"),
    [({"boxes": [[BOX], []]}, 2), ({"boxes": [[HUB_BOX]]}, 1), ([HUB_BOX], 1), ([[HUB_BOX], []], 2), ([], 1)],
)
def test_boxes_of_a_server_are_read(body: Any, images: int) -> None:
    answers = DETECTION.parse(json.dumps(body).encode(), [b""] * images, ["person", "car"])
    assert len(answers) == images
    if body:
        assert answers[0][0].tolist() == [1, 2, 30.5, 40, 0.75, 1]
    assert (answers[-1][:, 4] > 0).sum() == (1 if body and images == 1 else 0)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"probabilities": [[1.0]]}, "did not return"),
        ({"boxes": [[{**BOX, "box": [1, 2, 3]}]]}, "did not return"),
        ({"boxes": []}, "0 images for 1"),
        ({"boxes": [[{**BOX, "label": "tram"}]]}, "'tram'"),
        ({"boxes": [[{**BOX, "score": 2}]]}, "scores outside"),
    ],
)
def test_other_answers_of_a_server_are_refused(body: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DETECTION.parse(json.dumps(body).encode(), [b""], ["person", "car"])


@pytest.mark.parametrize(
    ("box", "words"),
    [
        ([0.1, 0.2, 0.5, 0.9], "shares of the image"),
        ([60, 40, 20, 10], "no width and height"),
        ([160, 30, 200, 60], "outside the image"),
    ],
)
def test_boxes_of_a_server_in_another_convention_are_refused(box: list[float], words: str) -> None:
    image = encode(np.zeros((64, 96, 3), np.uint8))
    body = {"boxes": [[{**BOX, "box": box}]]}
    with pytest.raises(InvalidInput, match=words):
        DETECTION.parse(json.dumps(body).encode(), [image], ["person", "car"])
    body["boxes"][0][0]["score"] = 0.1  # what is not confident may lie anywhere
    assert len(DETECTION.parse(json.dumps(body).encode(), [image], ["person", "car"])) == 1
