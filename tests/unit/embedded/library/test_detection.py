"""Detectors and boxes of a caller: the same answers and the same truth, whatever library they come from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessor, pipeline

from contrafact.testing import InProcessOptions
from embedded.library.datasets import read_dataset
from embedded.library.detection import BOXES, on_stored, prepare_detector, try_detector
from embedded.library.models import Upload
from evaluator_service.models_under_test.in_process import InProcessModel
from shared.media.images import Pixels, encode
from shared.problems import InvalidInput
from shared.schemas.boxes import TrueBox
from tests.support.colour_detector import CLASSES, ColourDetector, street

STREETS = [street(number) for number in range(4)]
PIXELS = [pixels for pixels, _ in STREETS]
TRUTH = [[TrueBox(box=box[:4], label=box[4]) for box in boxes] for _, boxes in STREETS]
DETECTOR = ColourDetector()


def options(**changes: Any) -> InProcessOptions:
    values: dict[str, Any] = {**dict.fromkeys(InProcessOptions.__dataclass_fields__), "task": "detect", "label_map": {}}
    return InProcessOptions(**{**values, "kind": "detection", "name": "mine", "classes": CLASSES, **changes})


def target(number: int) -> dict[str, Any]:
    boxes = STREETS[number][1]
    return {
        "boxes": torch.tensor([box[:4] for box in boxes]),
        "labels": torch.tensor([CLASSES.index(box[4]) for box in boxes]),
    }


def detect(images: Sequence[Pixels]) -> list[dict[str, torch.Tensor]]:
    return DETECTOR.forward([torch.from_numpy(image.copy()).permute(2, 0, 1) / 255 for image in images])


def each(convert: Callable[[Mapping[str, torch.Tensor]], object]) -> Callable[[Sequence[Pixels]], list[object]]:
    return lambda images: [convert(found) for found in detect(images)]


def as_supervision(found: Mapping[str, torch.Tensor]) -> object:
    return SimpleNamespace(
        xyxy=found["boxes"].numpy(), confidence=found["scores"].numpy(), class_id=found["labels"].numpy(), data={}
    )


def as_ultralytics(found: Mapping[str, torch.Tensor]) -> object:
    boxes = SimpleNamespace(xyxy=found["boxes"], conf=found["scores"], cls=found["labels"].float())
    return SimpleNamespace(boxes=boxes, names=dict(enumerate(CLASSES)))


def as_hub(found: Mapping[str, torch.Tensor]) -> object:
    rows = zip(found["boxes"].tolist(), found["labels"].tolist(), found["scores"].tolist(), strict=True)
    corners = ("xmin", "ymin", "xmax", "ymax")
    return [
        {"label": CLASSES[label], "score": score, "box": dict(zip(corners, box, strict=True))}
        for box, label, score in rows
    ]


class MaiteDetector:
    metadata: ClassVar = {"id": "colours", "index2label": dict(enumerate(CLASSES))}

    def __call__(self, batch: Sequence[Any]) -> list[object]:
        images = [np.moveaxis(np.asarray(image), 0, -1) for image in batch]
        return [
            SimpleNamespace(boxes=found["boxes"], labels=found["labels"], scores=found["scores"][:, None].repeat(1, 3))
            for found in detect(images)
        ]


def prepared(model: object, **changes: Any) -> InProcessModel:
    images = read_dataset(list(zip(PIXELS, map(target, range(4)), strict=True)), CLASSES, None, truths=BOXES)
    subject = prepare_detector(model, images, options(**changes))
    assert isinstance(subject, InProcessModel)
    return subject


@pytest.mark.parametrize(
    "model", [DETECTOR, detect, each(as_supervision), each(as_ultralytics), each(as_hub), MaiteDetector()]
)
def test_every_kind_of_detector_gives_the_same_boxes(model: object) -> None:
    subject = prepared(model)
    try_detector(subject, PIXELS[1])
    answers = subject.predict(PIXELS)
    assert subject.classes == CLASSES
    for answer, truth in zip(answers, TRUTH, strict=True):
        rows = answer[answer[:, 4] > 0]
        found = {(*row[:4].tolist(), CLASSES[int(row[5])]) for row in rows}
        assert found == {(*map(float, box.box), box.label) for box in truth}


def test_a_pipeline_for_object_detection_and_its_model_agree() -> None:
    torch.manual_seed(0)
    config = YolosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=[32, 32],
        patch_size=16, num_detection_tokens=5, id2label=dict(enumerate(CLASSES)),
        use_mid_position_embeddings=False,
    )  # fmt: skip
    model = YolosForObjectDetection(config).eval()
    processor = YolosImageProcessor(size={"shortest_edge": 32, "longest_edge": 48})
    whole = pipeline("object-detection", model=model, image_processor=processor)
    one, other = prepared(whole, classes=None), prepared(model, preprocess=processor, classes=None)
    assert one.classes == CLASSES
    for first, second in zip(one.predict(PIXELS), other.predict(PIXELS), strict=True):
        np.testing.assert_array_equal(first, second)
    entries = whole([Image.fromarray(PIXELS[0])], threshold=0.0)[0]
    scores = one.predict(PIXELS[:1])[0][:, 4]
    np.testing.assert_allclose(sorted(scores[scores > 0]), sorted(entry["score"] for entry in entries), atol=1e-6)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda images: [{"boxes": [[0, 0, 5, 5]], "labels": [0]} for _ in images], "without scores"),
        (lambda images: detect(images)[:1], "1 images for 2"),
        (lambda images: [np.zeros((3, 6)) for _ in images], "xyxy"),
        (lambda images: [{"boxes": [[0, 0, 5, 5]], "labels": [7], "scores": [0.5]} for _ in images], "label 7"),
        (lambda images: [{"boxes": [[0, 0, 5, 5]], "labels": ["dog"], "scores": [0.5]} for _ in images], "'dog'"),
        (lambda images: [{"boxes": [[1, 1, 9, 9]], "labels": [0], "scores": [7.0]} for _ in images], "scores"),
        (lambda images: [{"boxes": [[0.1, 0.1, 0.4, 0.4]], "labels": [0], "scores": [0.5]} for _ in images], "shares"),
        (lambda some: [{"boxes": [[5, 5, 9, 9]], "labels": [0], "scores": [1 / len(some)]} for _ in some], "batch"),
    ],
)  # fmt: skip
def test_impossible_answers_are_refused_before_anything_starts(model: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        try_detector(prepared(model), PIXELS[1])


def test_a_file_is_uploaded_as_a_detector(tmp_path: Path) -> None:
    (tmp_path / "mine.onnx").write_bytes(b"")
    images = read_dataset([(PIXELS[0], target(0))], CLASSES, None, truths=BOXES)
    subject = prepare_detector(tmp_path / "mine.onnx", images, options(output="yolo"))
    assert isinstance(subject, Upload)
    assert (subject.spec.kind, subject.spec.output) == ("detection", "yolo")


class MaiteDataset:
    metadata: ClassVar = {"id": "streets", "index2label": dict(enumerate(CLASSES))}

    def __len__(self) -> int:
        return len(STREETS)

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        found = SimpleNamespace(**target(index), scores=torch.ones(len(STREETS[index][1])))
        return np.moveaxis(PIXELS[index], -1, 0), found, {"id": str(index)}


def hugging_face() -> object:
    rows = [
        {
            "image": Image.fromarray(pixels),
            "objects": {
                "bbox": [[left, top, right - left, bottom - top] for left, top, right, bottom, _ in boxes],
                "category": [CLASSES.index(name) for *_, name in boxes],
            },
        }
        for pixels, boxes in STREETS
    ]
    objects = {
        "bbox": datasets.List(datasets.List(datasets.Value("float32"), length=4)),
        "category": datasets.List(datasets.ClassLabel(names=CLASSES)),
    }
    return datasets.Dataset.from_list(rows, features=datasets.Features({"image": datasets.Image(), "objects": objects}))


def folder(path: Path) -> Path:
    (path / "images").mkdir()
    (path / "labels").mkdir()
    for number, (pixels, boxes) in enumerate(STREETS):
        (path / f"images/{number}.png").write_bytes(encode(pixels))
        lines = [
            f"{CLASSES.index(name)} {(a + c) / 80} {(b + d) / 60} {(c - a) / 40} {(d - b) / 30}\n"
            for a, b, c, d, name in boxes
        ]
        (path / f"labels/{number}.txt").write_text("".join(lines))
    (path / "data.yaml").write_text(json.dumps({"names": CLASSES}))
    return path


def test_every_kind_of_data_set_gives_the_same_boxes(tmp_path: Path) -> None:
    pairs = [(pixels, target(number)) for number, (pixels, _) in enumerate(STREETS)]
    for dataset in (pairs, MaiteDataset(), hugging_face(), folder(tmp_path)):
        images = read_dataset(dataset, CLASSES if dataset is pairs else None, None, truths=BOXES)
        assert images.classes == CLASSES
        for position, truth in enumerate(TRUTH):
            boxes = images.read(position).boxes
            assert boxes is not None
            assert [box.label for box in boxes] == [box.label for box in truth]
            np.testing.assert_allclose([box.box for box in boxes], [box.box for box in truth], atol=1e-9)


def test_boxes_follow_an_image_that_is_scaled_down() -> None:
    (box,) = on_stored(encode(np.zeros((2048, 4096, 3), np.uint8)), [TrueBox(box=(400, 200, 800, 600), label="car")])
    assert box.box == (200, 100, 400, 300)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"boxes": [[5, 5, 2, 9]], "labels": [0]}, "'000000': .* no area"),
        ({"boxes": [[0, 0, 2, 9]], "labels": [9]}, "label 9 has no name"),
        ({"boxes": [[0, 0, 2, 9]]}, "labels"),
        (3, "xyxy"),
    ],
)
def test_truths_that_are_no_boxes_are_refused_with_the_image(item: object, words: str) -> None:
    images = read_dataset([(PIXELS[0], item)], CLASSES, None, truths=BOXES)
    with pytest.raises(ValueError, match=words):
        images.read(0)
