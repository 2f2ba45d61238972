"""`contrafact submit` with boxes: a folder, its archive and files elsewhere are the same test set of a detector."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from embedded.run import run_embedded
from shared.media.images import encode
from shared.schemas.service import SERVICES
from tests.support.command_line import contrafact
from tests.support.small_services import DETECTOR, ROAD_CLASSES, SEGMENTER, SmallServices, serve

SUBMIT = ["--task", "detect the vehicles", "--model", DETECTOR, "--method", "dillema", "--set", "steps=2"]
WIDTH, HEIGHT = 40, 30
EXPECTED = {"kind": "detection", "images": 3, "labelled": 3, "classes": ["car"]}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        serve(SmallServices()) as services,
        run_embedded(tmp_path_factory.mktemp("data"), service_urls=dict.fromkeys(SERVICES, services)) as system,
    ):
        yield system.base_url


@pytest.fixture
def testset(tmp_path: Path) -> Path:
    """Three dark streets with a red car, YOLO's labels beside them."""
    folder = tmp_path / "streets"
    for number in range(3):
        pixels = np.full((HEIGHT, WIDTH, 3), 20, np.uint8)
        cv2.rectangle(pixels, (4 + number, 5), (15 + number, 18), (200, 0, 0), -1)
        (folder / "images").mkdir(parents=True, exist_ok=True)
        (folder / "labels").mkdir(exist_ok=True)
        (folder / f"images/{number}.png").write_bytes(encode(pixels))
        box = (10 + number) / WIDTH, 12 / HEIGHT, 12 / WIDTH, 14 / HEIGHT
        (folder / f"labels/{number}.txt").write_text(f"0 {' '.join(map(str, box))}\n")
    (folder / "data.yaml").write_text("names: [car]\n")
    return folder


def plan(url: str, *arguments: object) -> dict[str, object]:
    planned = json.loads(contrafact(url, "submit", *arguments, *SUBMIT, "--dry-run", "--json")[0])
    return {name: planned[name] for name in ("kind", "images", "labelled", "classes")}


def test_boxes_are_found_beside_the_images_and_in_an_archive(url: str, testset: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "set"), "zip", testset)
    assert plan(url, testset) == EXPECTED
    assert plan(url, archive, "--boxes", archive) == EXPECTED


def test_boxes_may_lie_elsewhere(url: str, testset: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "truth"
    shutil.move(testset / "labels", elsewhere)
    assert plan(url, testset, "--boxes", elsewhere, "--score", "0.3", "--score", "car=0.4") == EXPECTED
    data = shutil.move(testset / "data.yaml", tmp_path / "names.yaml")
    assert "data.yaml" in contrafact(url, "submit", testset, *SUBMIT, "--boxes", elsewhere, code=3)[1]
    assert plan(url, testset / "images", "--boxes", elsewhere, "--boxes", data) == EXPECTED


def test_a_manifest_may_have_the_boxes(url: str, testset: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "boxes.jsonl"
    rows = [{"file": f"{number}.png", "boxes": [{"box": [4, 5, 16, 19], "label": "car"}]} for number in range(3)]
    manifest.write_text("\n".join(map(json.dumps, rows)))
    assert plan(url, testset / "images", "--labels", manifest) == EXPECTED
    assert plan(url, testset / "images")["labelled"] == 0


def test_what_is_wrong_with_boxes_is_said_in_options(url: str, testset: Path, tmp_path: Path) -> None:
    shutil.rmtree(testset / "labels")
    for words, *options in (
        ("--boxes FILE_OR_FOLDER", "--boxes", testset / "data.yaml"),
        ("--boxes FILE_OR_FOLDER", "--score", "0.3"),
        ("--labels", "--boxes", testset / "images"),
    ):
        code = 2 if "--score" in options or testset / "images" in options else 3
        assert words in contrafact(url, "submit", testset, *SUBMIT, *options, code=code)[1]


@pytest.mark.slow
@pytest.mark.parametrize("truth", ["boxes", "masks"])
def test_a_budget_is_compared_with_the_images_alone_before_they_are_sent(url: str, testset: Path, truth: str) -> None:
    """Three images cost 6 renderings: an edit and a null arm each. Masks lie beside them as images do."""
    options: list[object] = ["--task", "look at the street", "--method", "dillema", "--set", "steps=2"]
    options += ["--design", "balanced", "--value", "weather=fog"]
    if truth == "masks":
        shutil.rmtree(testset / "labels")
        (testset / "masks").mkdir()
        for number in range(3):
            mask = np.full((HEIGHT, WIDTH), number % 2, np.uint8)
            (testset / f"masks/{number}.png").write_bytes(encode(mask))
        classes = [{"name": name, "index": index} for index, name in enumerate(ROAD_CLASSES)]
        (testset / "classes.json").write_text(json.dumps({"classes": classes}))
        options += ["--model", SEGMENTER, "--masks", testset / "classes.json"]
    else:
        options += ["--model", DETECTOR]
    stderr = contrafact(url, "submit", testset, *options, "--budget", "5", code=3)[1]
    assert "`budget` is 5" in stderr
    assert "images.zip" not in stderr, "the display of the upload names the archive"
    assert contrafact(url, "submit", testset, *options, "--budget", "6")[0].strip()
