"""Detection in the embedded system: a detector behind a server, on drawn driving scenes whose boxes are exact."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Request
from starlette.datastructures import UploadFile

from embedded.run import run_embedded
from evaluator_service.models_under_test.kinds.segmentation import ImageSegmenter
from shared.media.images import decode, encode
from shared.profiles.profile import load_profile
from shared.schemas.results import JobResults, ResultsPage
from tests.support.http_jobs import finished
from tests.support.listening import listen
from tests.support.paths import REPOSITORY
from tinyworld.roads.demo import demo_scenes, write_demo
from tinyworld.roads.world import THINGS

SCENES = 24
DETECTOR = """
[evaluator.endpoints.regions]
url = "{url}/detect"
kind = "detection"
classes = ["vehicle", "pedestrian"]
revision = "1"
licence = "Apache-2.0"
"""
# In place of the profile's own editor for instructions.
EDITOR = """
[diffusion.instruct]
engine = "server"
[diffusion.instruct.server]
url = "{url}/v1"
model = "editor"
revision = "1"
licence = "none"
gigabytes = 1
"""
DUSK = {"instruction": "Let dusk fall.", "factor": "weather", "value": "dusk", "phrase": "at dusk"}
ZOOM = 1.04


def editor() -> FastAPI:
    """An editor that lets dusk fall where it should, and zooms every picture, as editors of today do."""
    app = FastAPI()

    @app.post("/v1/images/edits")
    async def edit(request: Request) -> dict[str, list[dict[str, str]]]:
        async with request.form() as form:
            sent, dark = form["image"], "dusk" in str(form["prompt"])
            assert isinstance(sent, UploadFile)
            source = decode(await sent.read())
        height, width = source.shape[:2]
        matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), 0, ZOOM)
        zoomed = np.asarray(cv2.warpAffine(source, matrix, (width, height), borderMode=cv2.BORDER_REFLECT))
        image = (zoomed * np.array([0.6, 0.5, 0.6])).astype(np.uint8) if dark else zoomed
        return {"data": [{"b64_json": base64.b64encode(encode(image)).decode()}]}

    return app


def detector() -> FastAPI:
    """A detector from the shipped segmenter: the boxes of connected regions; the score is how full the box is."""
    app, profile = FastAPI(), load_profile("tiny-roads")
    weights = next(model for model in profile.evaluator.models_under_test.values() if model.kind == "segmentation")
    segmenter = ImageSegmenter(weights, device="cpu")

    @app.post("/detect")
    def detect(body: dict[str, list[str]]) -> dict[str, object]:
        images = [decode(base64.b64decode(image)) for image in body["images"]]
        return {"boxes": [boxes_of(label_map, segmenter.classes) for label_map in segmenter.run(images)]}

    return app


def boxes_of(label_map: np.ndarray, classes: list[str]) -> list[dict[str, object]]:
    found = []
    for name in THINGS:
        mask = (label_map == classes.index(name)).astype(np.uint8)
        count, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
        for left, top, width, height, area in stats[1:count].tolist():
            if area >= 12:
                box = [left, top, left + width, top + height]
                found.append({"label": name, "score": area / (width * height), "box": box})
    return found


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, str]]:
    place = tmp_path_factory.mktemp("detection")
    folder = write_demo(place / "roads", demo_scenes(SCENES))
    with listen(detector()) as url, listen(editor()) as editor_url:
        profile = (REPOSITORY / "shared/profiles/tiny-roads.toml").read_text()
        before, _, after = profile.partition("[diffusion.instruct]")
        profile = before + EDITOR.format(url=editor_url) + after[after.index("[evaluator]") :]
        profile = profile.replace('"tinyworld/', f'"{REPOSITORY}/tinyworld/') + DETECTOR.format(url=url)
        (place / "profile.toml").write_text(profile)
        with (
            run_embedded(place / "system", str(place / "profile.toml")) as system,
            httpx.Client(base_url=system.base_url, timeout=300) as client,
        ):
            name = submitted(client, folder, {"name": "corruptions", "parameters": {"corruptions": ["fog"]}})
            yield client, name


def submitted(client: httpx.Client, folder: Path, method: dict[str, object]) -> str:
    """The id of a finished job."""
    spec = {
        "task": "detect vehicles and pedestrians",
        "models": ["regions"],
        "boxes": {"score": 0.3},
        "methods": [method],
    }
    files = {
        "images": ("roads.zip", packed(folder), "application/zip"),
        "spec": ("", json.dumps(spec).encode(), "application/json"),
    }
    reply = client.post("/jobs", files=files)
    assert reply.status_code == 202, reply.text
    name = str(reply.json()["id"])
    finished(client, f"/jobs/{name}")
    return name


def packed(folder: Path) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for path in [folder / "annotations.json", *sorted((folder / "images").iterdir())]:
            target.write(path, path.relative_to(folder).as_posix())
    return archive.getvalue()


@pytest.mark.slow
def test_a_detector_of_drawn_scenes_loses_objects_in_fog(job: tuple[httpx.Client, str]) -> None:
    client, name = job
    detail = client.get(f"/jobs/{name}").json()
    assert (detail["state"], detail["kind"], detail["labelled"]) == ("done", "detection", SCENES), detail["failure"]
    metrics = JobResults.model_validate(client.get(f"/jobs/{name}/results").json()["metrics"])
    (result,) = metrics.results
    found = result.detection
    assert found is not None
    assert result.originals is not None
    assert result.originals.standing == "sound", result.originals.sentence
    assert found.all_originals.found > found.all_originals.objects / 3
    assert found.all_originals.precision.ap50 is not None
    assert found.delta_recall is not None
    assert found.delta_recall < 0
    assert {cell.cell.label for cell in result.cells} >= {"vehicle", "pedestrian"}
    assert "Object by object" in client.get(f"/jobs/{name}/report").text


@pytest.mark.slow
def test_pictures_that_an_editor_zoomed_are_moved_back(job: tuple[httpx.Client, str], tmp_path: Path) -> None:
    client, _ = job
    folder = write_demo(tmp_path / "roads", demo_scenes(6))
    parameters = {"instructions": [DUSK], "thresholds": {}}
    name = submitted(client, folder, {"name": "instruct", "parameters": parameters})
    results = ResultsPage.model_validate(client.get(f"/jobs/{name}/results").json())
    assert results.metrics is not None
    assert [funnel.moved_back for funnel in results.metrics.funnels] == [len(results.counterfactuals)] == [6]
    for view in results.counterfactuals:
        assert view.scores["zoom"] == pytest.approx(ZOOM, abs=0.005)
        assert view.scores["registration"] == pytest.approx(1 / ZOOM**2, abs=0.02)
    found = results.metrics.results[0].detection
    assert found is not None
    assert found.nulls.found >= 0.9 * found.originals.found > 0
