"""Compose: its rows, requests and backgrounds, and a job of it with the shipped models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from contrafact.cli import app
from diffusion_service.app import create_app as create_diffusion_service
from embedded.run import Embedded, run_embedded
from embedded.serving import ListeningPort
from evaluator_service.app import create_app as create_evaluator_service
from gateway.methods.compose import ComposeParameters, compose, value_of_background
from gateway.methods.counterfactual import Background, MethodCounterfactual, MethodImage, TaskDescription
from shared.media.images import decode, encode
from shared.schemas.base import ImagePayload
from shared.schemas.service import SERVICES
from shared.service.settings import ServiceSettings
from tests.support.archives import zipped
from tests.support.captioned_services import Services
from tests.support.http_jobs import finished
from tests.support.logged_requests import LoggedServices
from tests.support.small_services import CLASSES, SmallServices, serve
from tests.support.work_site import wait_for
from tinyworld.objects.demo import write_demo

TASK = TaskDescription("name the vehicle", tuple(CLASSES))
VALUES = ("car scene", "bus scene", "boat scene")
POOL = tuple(
    Background(digest=f"{place:064x}", value=VALUES[place % 3], clear=True, mask=f"{99:064x}" if place == 0 else None)
    for place in range(9)
)
MANY = ComposeParameters(backgrounds=POOL, backgrounds_per_image=3)


def grey(level: int) -> ImagePayload:
    return ImagePayload(png=encode(np.full((32, 32, 3), level, np.uint8)))


def load(digest: str) -> ImagePayload:
    return grey(int(digest, 16))


def source(name: str = "source-1", digest: str = POOL[3].digest, level: int = 128) -> MethodImage:
    return MethodImage(name, grey(level), "car", digest=digest, load=load)


def values_of(rows: list[MethodCounterfactual]) -> list[str]:
    return [row.edit.changes[0].to_value for row in rows if row.edit]


def background_of(row: MethodCounterfactual) -> object:
    rendering = row.lineage["rendering"]
    return rendering["background"] if rendering else None


def test_each_background_size_place_and_mirror_image_is_an_edit_with_one_null_arm(services: LoggedServices) -> None:
    *edits, null = compose(source(), TASK, services, MANY, 1)
    backgrounds, others = values_of(edits)[:3], values_of(edits)[3:]
    assert set(backgrounds) == {"bus scene", "boat scene"}, "those of its own class would change nothing"
    assert others == ["60% of its size", "140% of its size", "at the left", "at the right", "mirrored"]
    assert {row.edit.changes[0].from_value for row in edits[:3] if row.edit} == {"car scene"}
    assert [(row.verdict.accepted, row.verdict.check) for row in edits[3:5]] == [(True, ""), (False, "object")]
    assert {row.null_ordinal for row in edits if row.image} == {null.ordinal}
    assert (null.arm, null.edit) == ("null", None)
    assert all(row.evaluations == 0 for row in (*edits, null))
    (request,) = services.compositions
    assert [composition.background is None for composition in request.compositions] == [False] * 3 + [True] * 6
    assert {background_of(row) for row in edits[:3]} < {background.digest for background in POOL}


def test_a_background_is_another_image_and_the_choice_belongs_to_the_source(services: LoggedServices) -> None:
    one_value = tuple(background.model_copy(update={"value": "car scene"}) for background in POOL)
    all_of_them = MANY.model_copy(update={"backgrounds": one_value, "backgrounds_per_image": 9})
    rows = list(compose(source(), TASK, services, all_of_them, 1))
    digests = [background_of(row) for row in rows if row.image]
    assert POOL[3].digest not in digests, "the source itself"
    assert len({*digests} - {""}) == 8
    assert all(row.edit.changes[0].from_value == "" for row in rows[:8] if row.edit), "the same value is no change"
    for seed in (1, 2, 1):
        list(compose(source(), TASK, services, MANY, seed))
    chosen = [[item.background for item in request.compositions] for request in services.compositions[-3:]]
    assert chosen[0] == chosen[2]
    assert chosen[0] != chosen[1]


def test_a_background_brings_its_mask(services: LoggedServices) -> None:
    first = MANY.model_copy(update={"backgrounds": POOL[:1]})
    list(compose(source(), TASK, services, first, 1))
    composition = services.compositions[-1].compositions[0]
    assert (composition.background, composition.background_mask) == (load(POOL[0].digest), grey(99))


@pytest.mark.slow
def test_a_background_without_a_value_is_named_by_its_caption(shipped: Services) -> None:
    """The caption names a class, a place and the weather: the place is the background's value, in every image."""
    unnamed = MANY.model_copy(update={"backgrounds": (Background(digest=POOL[0].digest), POOL[1])})
    for name in ("source-1", "source-2"):
        *edits, _ = compose(source(name), TASK, shipped, unnamed, 1)
        assert set(values_of(edits)[:2]) == {"city", POOL[1].value}
        (first,) = [row for row in edits[:2] if background_of(row) == POOL[0].digest]
        assert [exchange["question"] for exchange in first.lineage["exchanges"]] == ["keywords"]
    value, _ = value_of_background(POOL[0].digest, load, replace(TASK, classes=("city", "bus", "rain")), shipped)
    assert value != "city", "a class is no background"


def test_an_image_without_an_object_has_refused_edits_only(services: LoggedServices) -> None:
    rows = list(compose(source(level=0), TASK, services, MANY, 1))
    assert len(rows) == MANY.cells()
    assert {(row.arm, row.image, row.verdict.check) for row in rows} == {("edit", None, "object")}


def test_the_label_is_checked_if_the_job_asks_for_it(services: LoggedServices) -> None:
    unchecked = list(compose(source(), TASK, services, MANY, 1))
    assert all("label" not in row.scores and "label" in row.lineage["skipped_checks"] for row in unchecked)
    strict = MANY.model_copy(update={"label_threshold": 0.9})
    *edits, null = compose(source(), TASK, services, strict, 1)
    assert {row.verdict.check for row in edits if row.image} == {"label"}, (
        "the small scorer knows no class from another"
    )
    assert {row.null_check for row in edits if row.image} == {"label"}
    assert "label" not in null.lineage["skipped_checks"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"backgrounds_per_image": 0, "scales": [], "places": [], "mirrored": False},
        {"scales": [1.0]},
        {"scales": [0.5, 0.5]},
        {"places": ["left", "left"]},
        {"places": ["behind"]},
        {"backgrounds": [POOL[0].model_dump(), POOL[0].model_dump()]},
    ],
)
def test_senseless_parameters_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ComposeParameters.model_validate(wrong)


# --- A job with the shipped segmenter, scorer and classifier.


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    settings = ServiceSettings(profile="tiny", device="cpu", threads=1)
    with ExitStack() as stack:
        urls = dict.fromkeys(SERVICES, stack.enter_context(serve(SmallServices())))
        diffusion, evaluator = ListeningPort(), ListeningPort()
        for port, app in (
            (diffusion, create_diffusion_service(settings)),
            (evaluator, create_evaluator_service(settings)),
        ):
            stack.callback(port.close)
            port.serve(app)
        urls |= {"diffusion_service": diffusion.base_url, "evaluator_service": evaluator.base_url}
        embedded = stack.enter_context(run_embedded(tmp_path_factory.mktemp("data"), service_urls=urls))
        wait_for(lambda: httpx.get(f"{embedded.base_url}/models", timeout=600).status_code == 200)
        yield embedded


@pytest.fixture
def client(system: Embedded) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=system.base_url, timeout=600) as client:
        yield client


def spec_of(**parameters: object) -> bytes:
    method = {"name": "compose", "parameters": parameters}
    job = {"task": "classify the vehicle", "methods": [method], "models": ["street-classifier"]}
    return json.dumps(job).encode()


def part(spec: str) -> Any:
    return ("spec", ("", spec.encode(), "application/json"))


def sent(folder: Path, spec: bytes, count: int = 3) -> list[Any]:
    manifest = write_demo(folder, ["bus", "car"], count)
    files: list[Any] = [
        ("images", (path.name, path.read_bytes(), "image/png")) for path in sorted(manifest.parent.glob("*.png"))
    ]
    return [*files, ("manifest", ("manifest.csv", manifest.read_bytes())), ("spec", ("", spec, "application/json"))]


@pytest.mark.slow
def test_a_job_uses_its_other_images_as_backgrounds(client: httpx.Client, tmp_path: Path) -> None:
    files = sent(tmp_path / "pictures", spec_of(backgrounds_per_image=2, scales=[0.6], places=[]))
    plan = client.post("/jobs", params={"dry_run": "true"}, files=files).json()
    reply = client.post("/jobs", files=files)
    assert reply.status_code == 202, reply.text
    job = reply.json()["id"]
    assert finished(client, f"/jobs/{job}")["state"] == "done"
    page = client.get(f"/jobs/{job}/results", params={"limit": 100}).json()
    edits = page["counterfactuals"]
    assert plan["renderings"] == [{"method": "compose", "edits": 24, "null_arms": 6, "sham_arms": 0}]
    assert len(edits) == 24
    values = {(edit["source"]["ground_truth"], change["to_value"]) for edit in edits for change in edit["changes"]}
    assert values >= {("bus", "car scene"), ("car", "bus scene"), ("bus", "mirrored"), ("bus", "60% of its size")}
    accepted = [edit for edit in edits if edit["verdict"]["accepted"]]
    assert len(accepted) >= 18, [edit["verdict"] for edit in edits]
    (result,) = page["metrics"]["results"]
    assert result["metrics"]["accuracy"][0]["nulls"]["count"] >= 5
    assert "car scene" in client.get(f"/jobs/{job}/report").text


@pytest.mark.slow
def test_masks_of_objects_come_with_labelled_images(client: httpx.Client, tmp_path: Path) -> None:
    manifest = write_demo(tmp_path / "pictures", ["bus", "car"], 1)
    pictures = sorted(manifest.parent.glob("*.png"))
    square = np.zeros((128, 128), np.uint8)
    square[30:90, 30:90] = 200
    files: list[Any] = [
        file
        for name, picture in zip(("bus/a.png", "car/b.png"), pictures, strict=True)
        for file in ((f"images/{name}", picture.read_bytes()), (f"masks/{name}", encode(square)))
    ]
    spec = json.loads(spec_of(backgrounds_per_image=1, scales=[], places=[])) | {"object_masks": True}
    reply = client.post("/jobs", files=[("images", ("set.zip", zipped(dict(files)))), part(json.dumps(spec))])
    assert reply.status_code == 202, reply.text
    job = reply.json()
    assert job["labelled"] == 2
    assert finished(client, f"/jobs/{job['id']}")["state"] == "done"
    edits = client.get(f"/jobs/{job['id']}/results").json()["counterfactuals"]
    assert [edit["source"]["ground_truth"] for edit in edits] == ["bus", "bus", "car", "car"]
    assert {edit["source"]["mask"] for edit in edits} == {None}, "it is no ground truth"
    cut = {edit["control_image"] for edit in edits}
    (mask,) = [decode(client.get(f"/images/{digest}").content, "L") for digest in cut]
    assert np.array_equal(mask > 0, square > 0)


def test_masks_of_objects_need_the_method(client: httpx.Client, tmp_path: Path) -> None:
    spec = {"task": "classify the vehicle", "methods": ["corruptions"], "models": [], "object_masks": True}
    reply = client.post("/jobs", files=[*sent(tmp_path / "pictures", b"")[:1], part(json.dumps(spec))])
    assert (reply.status_code, "compose" in reply.json()["detail"]) == (422, True), reply.text


@pytest.mark.slow
def test_the_command_line_uploads_a_folder_of_backgrounds(system: Embedded, tmp_path: Path) -> None:
    pictures = write_demo(tmp_path / "pictures", ["bus", "car"], 1).parent
    for value, level in (("fresh_snow", 240), ("night", 20)):
        (tmp_path / "places" / value).mkdir(parents=True)
        (tmp_path / "places" / value / "1.png").write_bytes(encode(np.full((60, 90, 3), level, np.uint8)))
    (tmp_path / "places" / "IMG_0001.png").write_bytes(encode(np.full((60, 90, 3), 128, np.uint8)))
    options = ["--task", "classify the vehicle", "--method", "compose", "--model", "street-classifier", "--json"]
    shown = {"CONTRAFACT_URL": system.base_url}
    command = ["submit", str(pictures), *options, "--backgrounds", str(tmp_path / "places")]
    plan = CliRunner().invoke(app, [*command, "--dry-run"], env=shown)
    assert plan.exit_code == 0, plan.output
    assert json.loads(plan.stdout)["renderings"][0]["edits"] == 2 * ComposeParameters().cells()
    done = CliRunner().invoke(app, [*command, "--wait"], env=shown)
    assert done.exit_code == 0, done.output
    job = json.loads(done.stdout)
    (method,) = job["methods"]
    assert {background["value"] for background in method["parameters"]["backgrounds"]} == {"fresh snow", "night", ""}
    with httpx.Client(base_url=system.base_url, timeout=600) as client:
        edits = client.get(f"/jobs/{job['id']}/results", params={"value": "night"}).json()["counterfactuals"]
        assert len(edits) == 2
        image = decode(client.get(f"/images/{edits[0]['image']}").content)
    assert (image[:20, :20] == 20).all(), "the background as it was sent"


def test_backgrounds_that_are_not_uploaded_are_refused(client: httpx.Client, tmp_path: Path) -> None:
    missing = Background(digest="a" * 64, value="snow").model_dump()
    reply = client.post("/jobs", files=sent(tmp_path / "pictures", spec_of(backgrounds=[missing])))
    assert reply.status_code == 422, reply.text
    assert reply.json()["missing"] == ["a" * 64]


def test_one_image_has_no_other_background(client: httpx.Client, tmp_path: Path) -> None:
    files = sent(tmp_path / "pictures", spec_of())
    reply = client.post("/jobs", files=[files[0], files[-1]])
    assert (reply.status_code, "backgrounds_per_image" in reply.json()["detail"]) == (422, True), reply.text
