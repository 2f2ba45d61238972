"""Boxes in the formats `huggingface` and `fiftyone`: they come back within 1e-9 of a pixel, with their provenance."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedded.library.datasets import read_dataset
from embedded.library.detection import BOXES
from gateway.export.files import END, Exporting, class_folders
from gateway.export.job import FORMATS
from shared.media.images import encode
from shared.schemas.boxes import Detected, DetectedObject, ExtraBox, PredictedBox, TrueBox
from shared.schemas.exports import ExportedImage, ExportedPrediction, ExportNote, FormatName
from shared.schemas.results import ARMS, Arm

WIDTH, HEIGHT = 1_237, 777
TRUTH = [
    TrueBox(box=(1 / 3, 100.7, 900.1, 512.123456789), label="car", area=1234.5),
    TrueBox(box=(0.1, 0.2, 1_236.9, 776.3), label="bus", ignore="crowd"),
    TrueBox(box=(5, 6, 7, 8.25), label="bus", ignore="difficult"),
]
PREDICTED = PredictedBox(box=(0, 100, 901, 512), label="car", score=0.75)
EXTRA = ExtraBox(box=(1, 1, 50, 50), label="bus", score=0.5, why="hallucination")
NOTE = ExportNote.model_validate(
    {
        "format": "fiftyone", "job": "streets", "task_description": "detect vehicles", "methods": [], "models": ["m"],
        "kind": "detection", "classes": ["car", "bus"], "profile": "p", "seed": 0, "filters": {}, "services": {},
        "versions": {},
    }
)  # fmt: skip


def exported(arm: Arm) -> ExportedImage:
    things = [DetectedObject(**dict(TRUTH[0]), outcome="found", prediction=PREDICTED)]
    things += [DetectedObject(**dict(thing), outcome="ignored") for thing in TRUTH[1:]]
    prediction = ExportedPrediction(
        model="m", predicted="car", probability=0.75, ground_truth_probability=None, rank=None, flipped=None,
        detected=Detected(objects=things, extras=[EXTRA]),
    )  # fmt: skip
    return ExportedImage(
        id=arm, group="original", arm=arm, position=0, source_name="a.png", label=None, image="", width=WIDTH,
        height=HEIGHT, boxes=TRUTH, null_id="null_arm" if arm == "counterfactual" else None, predictions=[prediction],
        lineage_digest="" if arm == "original" else "5c",
    )  # fmt: skip


def unpacked(layout: FormatName, folder: Path) -> Path:
    png = encode(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    export = Exporting(NOTE, class_folders(NOTE.classes), map(exported, ARMS), lambda _: png)
    with tarfile.open(fileobj=io.BytesIO(b"".join([*FORMATS[layout](export), END]))) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.slow
def test_the_hubs_objects_are_a_data_set_that_can_be_tested(tmp_path: Path) -> None:
    import datasets

    loaded = datasets.load_dataset(str(unpacked("huggingface", tmp_path)), cache_dir=str(tmp_path / "cache"))["test"]
    images = read_dataset(loaded, None, None, truths=BOXES)
    assert images.classes == NOTE.classes
    for position, row in enumerate(loaded):
        boxes = images.read(position).boxes
        assert boxes is not None
        assert [(box.label, box.ignore) for box in boxes] == [(box.label, box.ignore) for box in TRUTH]
        np.testing.assert_allclose([box.box for box in boxes], [box.box for box in TRUTH], atol=1e-9)
        assert row["objects"][0]["area"] == TRUTH[0].area
        assert (row["lineage_digest"] == "5c") == (row["arm"] != "original")


def test_fiftyone_has_the_boxes_of_truth_and_models(tmp_path: Path) -> None:
    folder = unpacked("fiftyone", tmp_path)
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    fields = {field["db_field"]: field for field in metadata["sample_fields"]}
    samples = json.loads((folder / "samples.json").read_text(encoding="utf-8"))["samples"]
    assert len(samples) == 3
    for sample in samples:
        for name in ("ground_truth", "predicted_m"):
            assert fields[name]["embedded_doc_type"] == "fiftyone.core.labels.Detections"
            (of_boxes,) = fields[name]["fields"]
            assert of_boxes["embedded_doc_type"] == "fiftyone.core.labels.Detection"
            known = {field["db_field"] for field in of_boxes["fields"]} | {"_cls"}
            assert all(set(box) <= known for box in sample[name]["detections"])
        truth, predicted = (sample[name]["detections"] for name in ("ground_truth", "predicted_m"))
        np.testing.assert_allclose([corners(box) for box in truth], [box.box for box in TRUTH], atol=1e-9)
        assert [(box["iscrowd"], box["difficult"]) for box in truth] == [(False, False), (True, False), (False, True)]
        assert [(box["label"], box["confidence"]) for box in predicted] == [("car", 0.75), ("bus", 0.5)]
        assert (sample["lineage_digest"] == "5c") == (sample["arm"] != "original")


def corners(box: dict[str, Any]) -> list[float]:
    left, top, width, height = box["bounding_box"]
    return [left * WIDTH, top * HEIGHT, (left + width) * WIDTH, (top + height) * HEIGHT]


@pytest.mark.parametrize("layout", ["folders", "coco", "fiftyone"])
def test_every_format_says_what_became_of_the_objects(layout: FormatName, tmp_path: Path) -> None:
    folder = unpacked(layout, tmp_path)
    record = json.loads((folder / "provenance.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert [thing["outcome"] for thing in record["predictions"][0]["detected"]["objects"]] == [
        "found",
        *["ignored"] * 2,
    ]
