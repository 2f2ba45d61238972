"""A segmentation job over the public API, from masks to pages, with small services."""

from __future__ import annotations

import html
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from contrafact.cli import app
from embedded.run import run_embedded
from shared.media.images import decode, digest, encode
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import JobResults
from shared.schemas.service import SERVICES
from tests.support.archives import zipped
from tests.support.http_jobs import finished
from tests.support.small_services import CLASSES, SEGMENTER, SmallServices, serve

MASKS = {
    "classes": [
        {"name": "heaven", "colour": "#4682b4"},
        {"name": "road", "colour": "#804080"},
        {"name": "car", "colour": "#00008e", "thing": True},
    ],
    "void": ["#000000"],
}
COLOURS = np.array([[0x46, 0x82, 0xB4], [0x80, 0x40, 0x80], [0, 0, 0x8E], [0, 0, 0]], np.uint8)
SPEC: dict[str, Any] = {
    "task": "segment the street",
    "models": [SEGMENTER],
    "masks": MASKS,
    "label_map": {"heaven": "sky"},
    "methods": [{"name": "dillema", "parameters": {"counterfactuals_per_image": 2, "steps": 2, "thresholds": {}}}],
    "design": "free",
}


def scene(seed: int) -> tuple[bytes, bytes]:
    """An image with a brightness for each class, and its mask in colours with a void corner."""
    classes = np.repeat(np.repeat(np.random.default_rng(seed).integers(0, 3, (4, 5)), 5, axis=0), 4, axis=1)
    image = np.repeat(np.array([40, 120, 200], np.uint8)[classes][..., None], 3, axis=2)
    classes[:2, :2] = 3
    return encode(image), encode(COLOURS[classes])


def archive(count: int, bad: bool = False) -> bytes:
    files: dict[str, bytes] = {}
    for number in range(count):
        image, mask = scene(number)
        files |= {f"images/{number}.png": image, f"masks/{number}.png": image if bad and number == 0 else mask}
    return zipped(files, "set/")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        serve(SmallServices()) as services,
        run_embedded(tmp_path_factory.mktemp("roads"), service_urls=dict.fromkeys(SERVICES, services)) as system,
        httpx.Client(base_url=system.base_url, timeout=60) as client,
    ):
        yield client


def post(client: httpx.Client, data: bytes, spec: dict[str, Any], path: str = "/jobs") -> httpx.Response:
    files = {
        "images": ("set.zip", data, "application/zip"),
        "spec": ("", json.dumps(spec).encode(), "application/json"),
    }
    return client.post(path, files=files)


@pytest.fixture(scope="module")
def job(client: httpx.Client) -> str:
    reply = post(client, archive(13, bad=True), SPEC)
    assert reply.status_code == 202, reply.text
    detail = finished(client, reply.headers["Location"])
    assert (detail["state"], detail["kind"], detail["images"], detail["labelled"]) == ("done", "segmentation", 13, 12)
    assert detail["classes"] == ["sky", "road", "car"]
    (failure,) = detail["failures"]
    assert "set/masks/0.png" in failure["reason"]
    assert "have no class" in failure["reason"]
    return str(detail["id"])


def test_results_have_cells_matrices_and_label_maps(client: httpx.Client, job: str) -> None:
    page = client.get(f"/jobs/{job}/results", params={"limit": 1}).json()
    metrics = JobResults.model_validate(page["metrics"])
    (result,) = metrics.results
    pixels = result.segmentation
    assert pixels is not None
    assert (result.metric, result.sources, pixels.originals.images) == ("iou", 12, 12)
    assert pixels.originals.pixels == 12 * (400 - 4)
    assert [len(row) for row in pixels.difference] == [4, 4, 4]
    for scores in (pixels.originals, pixels.nulls, pixels.counterfactuals):
        assert all(sum(row) == pytest.approx(1) for row in scores.confusion)
    assert metrics.sensitivity is not None
    assert [shown.label for shown in metrics.sensitivity.classes] == ["car", "road", "sky"]
    view = page["counterfactuals"][0]
    truth = decode(client.get(f"/images/{view['source']['mask']}").content, "L")
    assert set(np.unique(truth).tolist()) <= {0, 1, 2, 255}
    prediction = view["predictions"][0]
    original = decode(client.get(f"/images/{prediction['original']['map']}").content, "L")
    assert (original == truth)[truth != 255].all()
    assert prediction["original"]["scores"][ALL_CLASSES] == 1.0
    scores = prediction["counterfactual"]["scores"].items()
    assert prediction["flipped"] == any(iou < 0.5 for name, iou in scores if name != ALL_CLASSES)
    cars = client.get(f"/jobs/{job}/results", params={"class": "car"}).json()["counterfactuals"]
    assert cars
    assert client.get(f"/jobs/{job}/results", params={"class": "ship"}).json()["counterfactuals"] == []


def test_pages_and_report_show_masks_over_pictures_and_the_matrices(client: httpx.Client, job: str) -> None:
    text = html.unescape(client.get(f"/jobs/{job}/view").text)
    for words in ("ΔIoU", "Class by class", "counterfactuals minus null arms", 'class="matrix"'):
        assert words in text
    assert "acc@1" not in text
    gallery = html.unescape(client.get(f"/jobs/{job}/gallery?masks=true").text)
    assert "mIoU " in gallery
    overlay = next(part.split('"')[0] for part in gallery.split('src="')[1:] if "/overlays/" in part.split('"')[0])
    for address, format in (overlay, "image/webp"), (overlay.partition("?")[0], "image/png"):
        painted = client.get(address)
        assert painted.headers["content-type"] == format
        assert Image.open(io.BytesIO(painted.content)).size == (20, 20)
    assert client.get(overlay.rpartition("/")[0] + "/" + "0" * 64).status_code == 404
    pair = next(part.split('"')[0] for part in gallery.split('href="')[1:] if "/pairs/" in part.split('"')[0])
    shown = html.unescape(client.get(pair).text)
    assert "mask of" in shown
    assert f"IoU, {SEGMENTER}" in shown
    masked = html.unescape(client.get(f"/jobs/{job}/gallery?masks=true&class=car").text)
    view = client.get(f"/jobs/{job}/results", params={"class": "car", "limit": 1}).json()["counterfactuals"][0]
    predicted = view["predictions"][0]["counterfactual"]["map"]
    for image, label_map in ((view["source"]["image"], view["source"]["mask"]), (view["image"], predicted)):
        assert f'src="/jobs/{job}/overlays/{image}/{label_map}?small=true"' in masked
    overview = html.unescape(client.get(f"/jobs/{job}/view?threshold=0.5").text)
    assert overview.count('class="matrix"') == 4
    assert "confidence of at least" not in overview, "a segmenter has no top probability"
    report = client.get(f"/jobs/{job}/report").text
    assert 'class="matrix"' in report
    assert report.count("data:image/webp") >= 6
    assert "/overlays/" not in report


def test_masks_may_be_form_parts_and_a_dry_run_plans_the_job(client: httpx.Client) -> None:
    image, mask = scene(1)
    files = [
        ("images", ("a.png", image, "image/png")),
        ("masks", ("a.png", mask, "image/png")),
        ("spec", ("", json.dumps(SPEC).encode(), "application/json")),
    ]
    plan = client.post("/jobs", params={"dry_run": "true"}, files=files).json()
    assert (plan["kind"], plan["images"], plan["labelled"]) == ("segmentation", 1, 1)
    assert [view["label"] for view in plan["sensitivity"]["classes"]] == ["car", "road", "sky"]
    stray = client.post("/jobs", files=[*files, ("masks", ("b.png", mask, "image/png"))])
    assert (stray.status_code, "b.png" in stray.text) == (422, True)
    loose = client.post("/jobs", files=[*files[:2], ("task", (None, "segment the street"))])
    assert (loose.status_code, "what they mean" in loose.text) == (422, True)


@pytest.mark.slow
def test_an_export_has_the_masks_and_is_a_job_again(client: httpx.Client, job: str, tmp_path: Path) -> None:
    exported = client.get(f"/jobs/{job}/export", params={"format": "folders"})
    assert exported.status_code == 200, exported.text
    with tarfile.open(fileobj=io.BytesIO(exported.content)) as archive:
        names = archive.getnames()
        note = archive.extractfile("contrafact.json")
        assert note is not None
        masks = json.loads(note.read())["masks"]
    edited = [name for name in names if name.startswith("counterfactual/")]
    assert edited
    assert {f"masks/{name}" for name in edited} <= set(names)
    assert masks["classes"][2] == {"name": "car", "index": 2, "colour": None, "thing": True}
    spec = {**SPEC, "masks": masks, "label_map": {}}
    again = finished(client, post(client, exported.content, spec).headers["Location"])
    assert (again["state"], again["images"], again["labelled"]) == ("done", 12, 12)
    first, second = (
        client.get(f"/jobs/{name}/results").json()["metrics"]["results"][0]["segmentation"]
        for name in (job, again["id"])
    )
    assert second["originals"] == first["originals"]
    plain = {name: value for name, value in SPEC.items() if name not in ("masks", "label_map")}
    without = post(client, exported.content, plain, "/jobs?dry_run=true").json()
    assert (without["images"], without["labelled"]) == (12, 0)


def test_a_parquet_export_has_a_column_of_masks(client: httpx.Client, job: str, tmp_path: Path) -> None:
    import datasets

    exports = {
        name: client.get(f"/jobs/{job}/export", params={"format": name}).content for name in ("folders", "huggingface")
    }
    for name, data in exports.items():
        with tarfile.open(fileobj=io.BytesIO(data)) as packed:
            packed.extractall(tmp_path / name, filter="data")
    lines = (tmp_path / "folders" / "provenance.jsonl").read_text(encoding="utf-8").splitlines()
    records = {record["id"]: record for record in map(json.loads, lines)}
    loaded = datasets.load_dataset(str(tmp_path / "huggingface"), cache_dir=str(tmp_path / "cache"))["test"]
    assert isinstance(loaded.features["mask"], datasets.Image)
    assert "label" not in loaded.features
    assert {row["id"] for row in loaded} == set(records)
    assert {row["arm"] for row in loaded} == {"original", "null_arm", "counterfactual"}
    for row in loaded:
        record = records[row["id"]]
        assert digest(np.asarray(row["image"].convert("RGB"))) == record["image"]
        assert row["mask"].mode == "L"
        assert digest(np.asarray(row["mask"])) == record["mask"]
        assert row["mask"].size == row["image"].size
    card = (tmp_path / "huggingface" / "README.md").read_text(encoding="utf-8")
    assert "task_categories: [image-segmentation]" in card
    for line in ("| 0 | sky |", "| 1 | road |", "| 2 | car |", "| 255 | void (not evaluated) |"):
        assert line in card.splitlines()
    refusal = post(client, exports["huggingface"], SPEC)
    assert (refusal.status_code, "as folders" in refusal.text) == (422, True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"label_map": {}}, "'heaven'"),
        ({"models": ["m1"]}, "'m1' classifies"),
        ({"models": ["m1", SEGMENTER]}, "models of one kind"),
        ({"models": None}, f"name `models`: '{SEGMENTER}'"),
        ({"masks": None}, "the masks mean"),
        ({"classes": CLASSES}, "leave `classes` out"),
        ({"ground_truth": "none"}, "`masks` are ground truth"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(
    client: httpx.Client, changes: dict[str, Any], sentence: str
) -> None:
    spec = {name: value for name, value in {**SPEC, **changes}.items() if value is not None}
    reply = post(client, archive(2), spec)
    assert reply.status_code == 422
    assert sentence in reply.json()["detail"].replace("\\", "")


def test_labels_are_no_ground_truth_of_a_segmenter(client: httpx.Client) -> None:
    image = scene(1)[0]
    files = [
        ("images", ("a.png", image, "image/png")),
        ("manifest", ("m.csv", b"file,label\na.png,car\n", "text/csv")),
        ("spec", ("", json.dumps({"task": "segment it", "models": [SEGMENTER]}).encode(), "application/json")),
    ]
    reply = client.post("/jobs", files=files)
    assert (reply.status_code, "label" in reply.text) == (422, True)


@pytest.mark.slow
def test_the_command_line_sends_masks_and_prints_classes(client: httpx.Client, tmp_path: Path) -> None:
    for number in range(2):
        for folder, data in zip(("images", "masks"), scene(number), strict=True):
            path = tmp_path / "set" / folder / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    (tmp_path / "classes.json").write_text(json.dumps(MASKS))
    options = ["--task", "segment the street", "--model", SEGMENTER, "--masks", str(tmp_path / "classes.json")]
    options += ["--label-map", "heaven=sky", "--method", "dillema", "--design", "free"]
    options += [
        word for setting in ("counterfactuals_per_image=1", "steps=2", "thresholds={}") for word in ("--set", setting)
    ]
    run = ["submit", str(tmp_path / "set"), *options, "--wait"]
    result = CliRunner().invoke(app, run, env={"CONTRAFACT_URL": str(client.base_url)})
    assert result.exit_code == 0, result.output
    assert "mIoU 100 % on originals" in result.stdout.replace("\N{NO-BREAK SPACE}", " ")
    assert "IoU originals" in result.stdout
