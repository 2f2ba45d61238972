"""Segmentation in the embedded system with a real SegFormer: a job with masks, a repair, and releases."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import SegformerConfig, SegformerForSemanticSegmentation
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil
from typer.testing import CliRunner, Result

from contrafact.cli import app
from embedded.run import run_embedded
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.repairs import RepairResult
from shared.schemas.results import JobResults
from shared.schemas.suites import RunResults
from tests.support.http_jobs import finished
from tinyworld.roads.own_distribution import own_distribution
from tinyworld.roads.render import Rendering, render
from tinyworld.roads.world import CLASSES, PALETTE, THINGS

SIDE = 64
SCENES = 80  # a finding needs as many: with 31 the interval of an effect is 24 points wide, even if all images agree
MASKS = {
    "classes": [
        {"name": name, "index": index, "thing": name in THINGS} for index, name in enumerate(CLASSES) if name != "void"
    ],
    "void": [0],
}


def scenes(count: int, split: Any) -> list[Rendering]:
    return [render(own_distribution(index, split), 96, 72) for index in range(count)]


def train_segmenter(folder: Path, drawings: list[Rendering], steps: int) -> None:
    """A SegFormer that has seen a few scenes: good enough that its IoU means something."""
    torch.manual_seed(0)
    config = SegformerConfig(
        hidden_sizes=[16, 32, 48, 64], depths=[1] * 4, num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=48,
        id2label=dict(enumerate(CLASSES)), semantic_loss_ignore_index=0, drop_path_rate=0.0,
        classifier_dropout_prob=0.0,
    )  # fmt: skip
    model = SegformerForSemanticSegmentation(config).train()
    processor = SegformerImageProcessorPil(size={"height": SIDE, "width": SIDE})
    pixels = processor(images=[Image.fromarray(drawing.image) for drawing in drawings], return_tensors="pt")[
        "pixel_values"
    ]
    small = [Image.fromarray(drawing.classes).resize((SIDE, SIDE), Image.Resampling.NEAREST) for drawing in drawings]
    labels = torch.tensor(np.stack([np.asarray(image) for image in small]).astype(np.int64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    order = np.random.default_rng(0)
    for _ in range(steps):
        chosen = torch.tensor(order.choice(len(drawings), 8, replace=False))
        loss = model(pixel_values=pixels[chosen], labels=labels[chosen]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)


def packed(drawings: list[Rendering]) -> bytes:
    """Images and indexed masks; one mask lacks its last row."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for number, drawing in enumerate(drawings):
            mask = Image.fromarray(drawing.classes if number else drawing.classes[:-1])
            mask.putpalette([channel for colour in PALETTE for channel in colour])
            for folder, image in (("images", Image.fromarray(drawing.image)), ("masks", mask)):
                buffer = io.BytesIO()
                image.save(buffer, "PNG")
                target.writestr(f"{folder}/{number:04}.png", buffer.getvalue())
    return archive.getvalue()


def upload(client: httpx.Client, folder: Path, name: str = "roads") -> None:
    spec = {"name": name, "task": "segmentation"}
    files = [("model", (path.name, path.read_bytes())) for path in sorted(folder.iterdir())]
    reply = client.post("/models", files=[*files, ("spec", ("", json.dumps(spec).encode(), "application/json"))])
    assert reply.status_code == 201, reply.text
    assert (reply.json()["kind"], reply.json()["classes"]) == ("segmentation", list(CLASSES))


def run_job(client: httpx.Client, drawings: list[Rendering], methods: list[dict[str, Any]]) -> str:
    spec = {"task": "segment the street for a car", "models": ["roads"], "masks": MASKS, "methods": methods}
    files = {
        "images": ("roads.zip", packed(drawings), "application/zip"),
        "spec": ("", json.dumps(spec).encode(), "application/json"),
    }
    reply = client.post("/jobs", files=files)
    assert reply.status_code == 202, reply.text
    job = str(reply.json()["id"])
    finished(client, f"/jobs/{job}")
    return job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, str]]:
    """A system, and a job that is done in it."""
    place = tmp_path_factory.mktemp("roads")
    train_segmenter(place / "model", scenes(48, "under-test"), steps=150)
    train_segmenter(place / "early", scenes(48, "under-test"), steps=15)
    methods = [{"name": "corruptions", "parameters": {"corruptions": ["gaussian_noise", "fog"]}}]
    with (
        run_embedded(place / "system") as system,
        httpx.Client(base_url=system.base_url, timeout=300) as client,
    ):
        upload(client, place / "model")
        upload(client, place / "early", "roads-early")
        yield client, run_job(client, scenes(SCENES + 1, "demo"), methods)


@pytest.mark.slow
def test_a_trained_segmenter_is_uploaded_and_its_weak_classes_found(job: tuple[httpx.Client, str]) -> None:
    client, name = job
    detail = client.get(f"/jobs/{name}").json()
    metrics = JobResults.model_validate(client.get(f"/jobs/{name}/results").json()["metrics"])
    report = client.get(f"/jobs/{name}/report").text
    assert (detail["state"], detail["labelled"], len(detail["failures"])) == ("done", SCENES, 1)
    assert "96×71" in detail["failures"][0]["reason"]
    (result,) = metrics.results
    pixels = result.segmentation
    assert pixels is not None
    assert (result.sources, pixels.originals.images, pixels.counterfactuals.images) == (SCENES, SCENES, SCENES * 10)
    road = pixels.classes.index("road")
    assert (pixels.originals.iou[road] or 0) > 0.7
    assert (pixels.originals.mean_iou or 0) > (pixels.counterfactuals.mean_iou or 0) + 0.03
    assert pixels.interval is not None
    assert pixels.delta_iou is not None
    assert pixels.interval.low < pixels.delta_iou < 0
    assert pixels.pooled_interval is not None
    assert pixels.pooled_interval.high < 0
    weak = {effect.cell.value for effect in result.findings if effect.standing == "weakness"}
    assert weak & {"fog 5", "fog 4"}
    assert not any(value.startswith("gaussian noise 1") for value in weak)
    assert report.count('class="matrix"') == 4


@pytest.mark.slow
def test_it_is_repaired_on_the_counterfactuals_of_other_scenes(job: tuple[httpx.Client, str]) -> None:
    client, name = job
    request = {"model": "roads", "steps": 60, "batch_size": 8, "learning_rate": 1e-3, "values": ["fog 4", "fog 5"]}
    reply = client.post(f"/jobs/{name}/repairs", json=request)
    assert reply.status_code == 202, reply.text
    repair = str(reply.json()["id"])
    view = finished(client, f"/repairs/{repair}")
    assert (view["state"], view["failure"]) == ("done", "")
    result = RepairResult.model_validate(view["result"])
    assert result.sources_trained_on + result.sources_held_out == SCENES
    sets = {figures.set: {arm.arm: arm for arm in figures.arms} for figures in result.sets}
    assert sets.keys() == {"originals", "counterfactuals", "values not trained on"}
    before, repaired = (sets["counterfactuals"][arm] for arm in ("before", "repaired"))
    assert before.segmentation is not None
    assert repaired.segmentation is not None
    assert (repaired.segmentation.mean_iou or 0) > (before.segmentation.mean_iou or 0) + 0.02
    assert repaired.against_before is not None
    assert repaired.against_before.difference > 0
    assert {cell.value for cell in result.cells if cell.trained_on} == {"fog 4", "fog 5"}
    content = client.get(f"/repairs/{repair}/model").content
    added = client.post("/models", data={"name": "roads-repaired"}, files={"model": ("model.tar", content)})
    assert (added.status_code, added.json()["kind"]) == (201, "segmentation"), added.text


@pytest.mark.slow
def test_releases_are_compared_on_a_suite_that_outlives_its_job(job: tuple[httpx.Client, str]) -> None:
    client, name = job

    def contrafact(*arguments: object) -> Result:
        environment = {"CONTRAFACT_URL": str(client.base_url)}
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)

    assert contrafact("suites", "create", name, "--name", "fog", "--where", "value=fog 3").stdout == "fog\n"
    assert client.delete(f"/jobs/{name}").is_success
    gate = ("gate", "--suite", "fog", "--baseline", "roads", "--max-drop", 5)
    early = contrafact(*gate, "--model", "roads-early")
    assert early.exit_code == 1, early.output
    assert "% IoU against" in early.stdout
    itself = contrafact(*gate, "--model", "roads")
    assert (itself.exit_code, itself.stdout) == (0, ""), itself.output
    (run,) = [run_view for run_view in client.get("/suites/fog").json()["runs"] if run_view["model"] == "roads-early"]
    results = RunResults.model_validate(client.get(f"/suites/fog/runs/{run['id']}/results").json())
    assert (results.metric, results.relation, results.baseline, results.left_out) == ("iou", "labelled", None, 0)
    assert {
        comparison.sources for comparison in results.cells if comparison.cell and comparison.cell.label == ALL_CLASSES
    } == {SCENES}
