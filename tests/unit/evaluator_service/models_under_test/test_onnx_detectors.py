"""ONNX detectors under test: every layout of outputs, with letterboxes, on networks that find a bright rectangle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from evaluator_service.models_under_test.kinds.detection import DETECTION
from evaluator_service.models_under_test.loading import load_folder, try_out
from shared.media.images import Pixels
from shared.problems import InvalidInput
from tests.support.model_folders import written
from tests.support.small_packages import as_onnx

SIDE = 64
BOXES = ((20, 30, 60, 50), (8, 4, 120, 90))  # in pictures of 128 × 96
COLOURS = ((255, 40, 40), (40, 40, 255))
LETTERBOX = {"height": SIDE, "width": SIDE, "fit": "letterbox", "resample": "nearest"}


def picture(box: Sequence[int], colour: Sequence[int]) -> Pixels:
    pixels = np.full((96, 128, 3), 60, np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = colour
    return pixels


PICTURES = [picture(box, colour) for box, colour in zip(BOXES, COLOURS, strict=True)]


class BrightRectangle(torch.nn.Module):
    """Finds the bounding box of what is bright in pictures of 64 × 64, and whether that is red or blue."""

    places: Tensor

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.register_buffer("places", torch.arange(SIDE, dtype=torch.float32))

    def forward(self, pictures: Tensor) -> Any:
        bright = (pictures.amax(dim=1) > 0.9).float()
        corners = self.corners(bright)
        red, blue = ((pictures[:, channel] * bright).sum(dim=(1, 2)) for channel in (0, 2))
        uneven = (pictures[:, 1] * self.places).mean(dim=(1, 2)) / SIDE  # a mirror image has another
        scores = torch.stack([red, blue], dim=1) / (red + blue + 1)[:, None] * (1 - 0.01 * uneven)[:, None]
        return getattr(self, self.layout)(corners, scores)

    def corners(self, bright: Tensor) -> Tensor:
        sides = []
        for axis in (1, 2):
            any_bright = bright.amax(dim=axis)
            sides.append((self.places + (1 - any_bright) * SIDE).amin(dim=1))
            sides.append(((self.places + 1) * any_bright).amax(dim=1))
        left, right, top, bottom = sides
        return torch.stack([left, top, right, bottom], dim=1)

    @staticmethod
    def centres(corners: Tensor) -> Tensor:
        return torch.cat([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], dim=1)

    def detr(self, corners: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        nothing = 1 - scores.sum(dim=1, keepdim=True)
        found = torch.log(torch.cat([scores, nothing], dim=1).clamp(min=1e-6))
        boxes = self.centres(corners) / SIDE
        return torch.stack([found.flip(1) * 0 + torch.tensor([0.0, 0.0, 9.0]), found], 1), torch.stack(
            [boxes, boxes], 1
        )

    def rt_detr(self, corners: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        boxes = self.centres(corners) / SIDE
        logits = torch.logit(scores.clamp(1e-6, 1 - 1e-6))
        return torch.stack([logits * 0 - 9, logits], dim=1), torch.stack([boxes * 0.9, boxes], dim=1)

    def yolo(self, corners: Tensor, scores: Tensor) -> Tensor:
        anchors = torch.cat([self.centres(corners), scores], dim=1)[:, :, None].repeat(1, 1, 8)
        shifts = torch.zeros(6, 8)
        shifts[0] = 0.05 * torch.arange(8)  # what non-maximum suppression removes
        shifts[4:] = -0.01 * torch.arange(8)
        return anchors + shifts

    def end_to_end(self, corners: Tensor, scores: Tensor) -> Tensor:
        best, place = scores.max(dim=1)
        row = torch.cat([corners, best[:, None], place[:, None].float()], dim=1)
        return torch.stack([row, row * 0], dim=1)

    def torchvision(self, corners: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        best, place = scores.max(dim=1)
        return corners, place + 1, best

    def jatic(self, corners: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return corners[:, None] / SIDE, scores[:, None]


NAMES = {
    "detr": ["logits", "pred_boxes"],
    "rt_detr": ["logits", "pred_boxes"],
    "yolo": ["output0"],
    "end_to_end": ["output0"],
    "torchvision": ["boxes", "labels", "scores"],
    "jatic": ["boxes", "scores"],
}


@pytest.fixture(scope="module", params=list(NAMES))
def exported(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    layout: str = request.param
    return layout, network(layout)


def network(layout: str) -> bytes:
    return as_onnx(BrightRectangle(layout), 1 if layout == "torchvision" else None, names=NAMES[layout])


def description(layout: str, **preprocessing: Any) -> dict[str, Any]:
    names = ["background", "red", "blue"] if layout == "torchvision" else ["red", "blue"]
    return {"kind": "detection", "classes": names, "preprocessing": {**LETTERBOX, **preprocessing}}


def test_every_layout_is_recognised_and_its_boxes_are_those_of_the_picture(
    exported: tuple[str, bytes], tmp_path: Path
) -> None:
    layout, data = exported
    for fit, exact in (("letterbox", 0.01), ("letterbox-corner", 0.01), ("stretch", 2.0)):
        folder = written(tmp_path / fit, {"model.onnx": data}, **description(layout, fit=fit))
        model = load_folder(folder, device="cpu")
        try_out(model)
        reply = DETECTION.reply(model.classes, list(model.run(PICTURES)))
        for boxes, expected, name in zip(reply.boxes, BOXES, ("red", "blue"), strict=True):
            best = max(boxes, key=lambda found: found.score)
            assert best.label == name
            np.testing.assert_allclose(best.box, expected, atol=exact)
            strong = [found for found in boxes if found.score > 0.5]
            assert len(strong) == 1, "no box twice"
    bgr = load_folder(
        written(tmp_path / "bgr", {"model.onnx": data}, **description(layout, channels="bgr")), device="cpu"
    )
    (boxes, _) = DETECTION.reply(bgr.classes, list(bgr.run(PICTURES))).boxes
    assert max(boxes, key=lambda found: found.score).label == "blue"


def with_metadata(data: bytes, **entries: str) -> bytes:
    model = onnx.load_model_from_string(data)
    onnx.helper.set_model_props(model, entries)
    return bytes(model.SerializeToString())


def test_what_cannot_be_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    yolo, end_to_end = network("yolo"), network("end_to_end")
    plain = description("yolo")
    cases: list[tuple[bytes, dict[str, Any], str]] = [
        (yolo, {**plain, "classes": ["red", "blue", "green"], "output": "yolo"}, "2 outputs, but `classes` names 3"),
        (yolo, {**plain, "classes": list("abc")}, "no known layout; set `output`"),
        (yolo, {**plain, "output": "detr"}, "logits and pred_boxes"),
        (yolo, {**plain, "output": "logits"}, "a detector's `output` is one of"),
        (yolo, description("yolo", fit="crop"), "needs the whole image"),
        (with_metadata(yolo, task="pose"), plain, "'pose'"),
        (network("detr"), {**plain, "classes": {"red": 0}}, "set `output`"),
        (end_to_end, {key: value for key, value in plain.items() if key != "classes"}, "give `classes`"),
        (end_to_end, {**plain, "classes": ["red"]}, "class 1, and its classes"),
    ]
    for number, (data, described, words) in enumerate(cases):
        folder = written(tmp_path / str(number), {"model.onnx": data}, **described)
        with pytest.raises(InvalidInput, match=words):
            try_out(load_folder(folder, device="cpu"), 8)


def test_names_in_a_file_are_those_of_the_model(tmp_path: Path) -> None:
    data = with_metadata(network("yolo"), names="{0: 'red', 1: 'blue'}", task="detect")
    folder = written(tmp_path, {"model.onnx": data}, kind="detection", preprocessing=LETTERBOX)
    assert load_folder(folder, device="cpu").classes == ["red", "blue"]
