"""`POST /jobs?dry_run=true`, `GET /jobs/{job}/plan` and `contrafact submit --dry-run`: the power of a job."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner

from contrafact.cli import app
from contrafact.plan_text import grouping
from gateway.database.owner_tables import Image, OwnedImage, Upload
from gateway.database.tables import Job, JobRound, RecordedCall, Table
from gateway.jobs.rounds import FIRST_IMAGES
from shared.media.testsets import EQUAL
from shared.schemas.plans import JobPlan
from tests.support.archives import zipped
from tests.support.gateway_under_test import Gateway, picture

TASK = "classify the vehicle"


def packed(**per_class: int) -> bytes:
    """A zip of class folders."""
    names = [f"{label}/{n}.png" for label, count in per_class.items() for n in range(count)]
    files = {name: picture(shade) for shade, name in enumerate(names)}
    return zipped({**files, "bus/broken.png": b"\x89PNG\r\n\x1a\n"})


def ask(gateway: Gateway, dry_run: str = "true", **spec: Any) -> httpx.Response:
    data = {"spec": json.dumps({"task": TASK, **spec})}
    files = {"images": ("set.zip", packed(bus=24, car=3))}
    return gateway.client.post("/jobs", params={"dry_run": dry_run}, files=files, data=data)


def row_counts(gateway: Gateway) -> list[int]:
    tables: list[type[Table]] = [Job, Image, OwnedImage, Upload]
    with gateway.context.sessions() as session:
        rows = [session.scalar(select(func.count()).select_from(table)) or 0 for table in tables]
    return [*rows, sum(1 for _ in gateway.context.store.iterate())]


def test_a_dry_run_states_the_power_of_the_job_and_writes_nothing(gateway: Gateway) -> None:
    before, wakes = row_counts(gateway), len(gateway.wakes)
    reply = ask(gateway, methods=[{"name": "dillema", "parameters": {"counterfactuals_per_image": 2}}])
    assert reply.status_code == 200, reply.text
    plan = reply.json()
    assert (row_counts(gateway), len(gateway.wakes)) == (before, wakes)
    assert (plan["images"], plan["labelled"], plan["missing"]) == (27, 27, 0)
    assert [failure["name"] for failure in plan["failures"]] == ["bus/broken.png"]
    assert plan["sensitivity"]["family"] == 4
    bus, car = plan["sensitivity"]["classes"]
    assert (bus["label"], bus["sources"]) == ("bus", 24)
    assert 0.1 < bus["drop"] < 1
    assert "70 % of the edits are accepted" in plan["sensitivity"]["assumption"]  # as the profile's calibration has it
    assert (car["drop"], car["sources"]) == (None, 3)
    job = ask(gateway, dry_run="false", methods=plan["methods"]).json()
    of_job = gateway.client.get(f"/jobs/{job['id']}/plan").json()
    assert of_job["sensitivity"] == plan["sensitivity"]
    assert {name: of_job[name] for name in ("images", "labelled", "models")} == {
        name: plan[name] for name in ("images", "labelled", "models")
    }
    assert gateway.client.get("/jobs/nothing/plan").status_code == 404


@pytest.mark.parametrize(
    ("thresholds", "unchecked", "off"),
    [
        ({}, ["dillema"], ["structure", "caption", "label", "fit"]),
        (
            {"label": {"default": -1}, "shapes": {"default": 0.5}},
            ["dillema"],
            ["structure", "caption", "label", "fit"],
        ),
        ({"caption": {"default": 0.0}}, [], ["structure", "fit"]),
    ],
)
def test_a_plan_names_methods_whose_images_no_check_can_refuse(
    gateway: Gateway, thresholds: dict[str, Any], unchecked: list[str], off: list[str]
) -> None:
    """`shapes` looks at images of segmentation jobs only, and the rank of the label needs no threshold."""
    methods = [{"name": "dillema", "parameters": {"thresholds": thresholds}}]
    planned = ask(gateway, methods=methods).json()
    assert planned["unchecked"] == unchecked
    assert planned["checks_off"] == {"dillema": off}
    job = ask(gateway, dry_run="false", methods=methods).json()
    assert gateway.client.get(f"/jobs/{job['id']}/plan").json()["unchecked"] == unchecked


def test_a_manifest_is_planned_before_its_images_are_uploaded(gateway: Gateway) -> None:
    before = row_counts(gateway)
    images = [{"digest": f"{number:064x}", "label": "bus"} for number in range(40)]
    plan = gateway.client.post("/jobs?dry_run=true", json={"task": TASK, "images": images})
    assert plan.status_code == 200, plan.text
    assert (plan.json()["images"], plan.json()["missing"]) == (40, 40)
    assert row_counts(gateway) == before


def test_groups_come_from_manifests_and_folders_and_are_asked_for(gateway: Gateway) -> None:
    names = [f"drive{drive}/{frame}.png" for drive in (1, 2) for frame in range(5)]
    images = [{"digest": f"{number:064x}", "name": name} for number, name in enumerate(names)]

    def plan(**spec: Any) -> httpx.Response:
        return gateway.client.post("/jobs?dry_run=true", json={"task": TASK, "images": images, **spec})

    assert (plan().json()["groups"], plan().json()["look_like_sequences"]) == (None, True)
    by_folder = plan(group_by="folder").json()
    assert (by_folder["groups"], by_folder["sensitivity"]["unit"]) == (2, "group")
    assert not by_folder["folders_suffice"]
    assert not by_folder["may_be_one_sequence"]
    images[0]["group"] = "another drive"
    assert plan(group_by="folder").json()["groups"] == 3
    assert plan().json()["groups"] == 10
    for image in images:
        image |= {"name": "bus/" + image["name"].rpartition("/")[2], "label": "bus"}
    assert plan(group_by="folder").status_code == 422
    assert plan(group_by="folder", ground_truth="none").json()["groups"] == 2, "without labels no folder is a class"


def test_a_plan_asks_whether_numbered_files_are_one_video(gateway: Gateway) -> None:
    images = [{"digest": f"{number:064x}", "name": f"image_02/data/{number:010}.png"} for number in range(20)]

    def lines() -> list[str]:
        reply = gateway.client.post("/jobs?dry_run=true", json={"task": TASK, "images": images})
        return grouping(JobPlan.model_validate_json(reply.content))

    (line,) = lines()
    assert "video" in line
    images[0]["group"] = "another scene"
    (line,) = lines()
    assert line.split()[:2] == ["groups", "20;"]


def test_equal_images_are_left_out_however_they_are_sent(gateway: Gateway) -> None:
    """They are no independent images; forms and lists of digests counted them as such."""
    images = [{"digest": f"{number % 30:064x}", "label": "bus", "name": f"{number}.png"} for number in range(40)]
    plan = gateway.client.post("/jobs?dry_run=true", json={"task": TASK, "images": images}).json()
    assert plan["missing"] == plan["images"] == 30
    assert any(line.startswith(f"10 left out, {EQUAL}") for line in plan["test_set"])
    pictures = {f"bus/{number}.png": picture(number % 2) for number in range(5)}
    listed = []
    for name, data in pictures.items():
        digest = hashlib.sha256(data).hexdigest()
        gateway.client.put(f"/images/{digest}", content=data).raise_for_status()
        listed.append({"digest": digest, "label": "bus", "name": name})
    spec = {"data": {"spec": json.dumps({"task": TASK})}}
    for request in (
        {"files": {"images": ("set.zip", zipped(pictures))}, **spec},
        {"files": [("images", (name, data, "image/png")) for name, data in pictures.items()], **spec},
        {"json": {"task": TASK, "images": listed}},
    ):
        job = gateway.client.post("/jobs", **request).json()
        plan = gateway.client.get(f"/jobs/{job['id']}/plan").json()
        assert plan["images"] == 2
        assert any(line.startswith(f"3 left out, {EQUAL}") for line in plan["test_set"])


def test_a_dry_run_refuses_what_the_job_would_be_refused_for(gateway: Gateway) -> None:
    assert ask(gateway, models=["nobody"]).status_code == 422
    assert ask(gateway, label_map={"bus": "tram"}).json()["unknown_labels"] == ["tram"]
    assert ask(gateway, dry_run="perhaps").status_code == 422
    reply = ask(gateway, calibration="holiday photos")
    assert "holiday photos" in reply.json()["detail"]


def test_without_ground_truth_the_plan_says_what_any_class_would_need(gateway: Gateway) -> None:
    sensitivity = ask(gateway, ground_truth="none").json()["sensitivity"]
    assert sensitivity["classes"] == []
    needed = [each["sources"] for each in sensitivity["needed"]]
    assert needed == sorted(needed)


@pytest.mark.slow
def test_the_command_line_shows_the_plan(gateway: Gateway, tmp_path: Path) -> None:
    for number in range(14):
        path = tmp_path / "testset" / "bus" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(100 + number))
    before = row_counts(gateway)
    environment = {"CONTRAFACT_URL": str(gateway.client.base_url)}
    arguments = ["submit", str(tmp_path / "testset"), "--task", TASK]
    result = CliRunner().invoke(app, [*arguments, "--dry-run"], env=environment)
    assert result.exit_code == 0, result.output
    assert "14 to upload" in result.stdout
    assert "`bus`, 14 images" in result.stdout
    assert row_counts(gateway) == before
    as_json = CliRunner().invoke(app, [*arguments, "--dry-run", "--json"], env=environment)
    assert json.loads(as_json.stdout)["missing"] == 14
    (tmp_path / "set.zip").write_bytes(packed(bus=14))
    of_archive = CliRunner().invoke(
        app, ["submit", str(tmp_path / "set.zip"), *arguments[2:], "--dry-run"], env=environment
    )
    assert "unusable  bus/broken.png" in of_archive.stdout
    started = CliRunner().invoke(app, arguments, env=environment)
    assert "`bus`, 14 images" in started.stderr
    assert row_counts(gateway)[0] == before[0] + 1


def test_a_submitted_job_warns_of_file_names_that_look_like_frames(gateway: Gateway, tmp_path: Path) -> None:
    folder = tmp_path / "drive"
    folder.mkdir()
    for number in range(13):
        (folder / f"camera{number % 2}_{number // 2:04}.png").write_bytes(picture(100 + number % 12))
    arguments = ["submit", str(folder), "--task", TASK, "--no-labels", "--no-models"]
    environment = {"CONTRAFACT_URL": str(gateway.client.base_url)}
    without_groups = CliRunner().invoke(app, arguments, env=environment)
    with_groups = CliRunner().invoke(app, [*arguments, "--group-by", "folder"], env=environment)
    assert "column `group`" in without_groups.stderr
    assert "--group-by folder" not in without_groups.stderr, "it would give one group"
    assert f"1 left out, {EQUAL}" in without_groups.stderr
    assert "column `group`" not in with_groups.stderr
    assert "groups    1" in with_groups.stderr


def test_reference_models_join_the_models_of_a_job_and_none_of_them_is_under_test(gateway: Gateway) -> None:
    tested = ask(gateway).json()["models"]
    others = [model["name"] for model in gateway.client.get("/models").json()["models"] if model["name"] not in tested]
    reply = ask(gateway, reference_models=tested[:1])
    assert reply.status_code == 422
    assert tested[0] in reply.json()["detail"]
    if others:
        named = ask(gateway, models=tested[:1], reference_models=others[:1]).json()
        assert named["models"] == [tested[0], others[0]]
    assert ask(gateway, models=[], reference_models=tested[:1]).status_code == 422


def test_a_balanced_plan_names_the_values_of_every_image_and_its_cost(gateway: Gateway) -> None:
    plan = ask(gateway, design="balanced", values=["weather=night", "domain=sketch"], budget=1_000).json()
    values = [{"factor": "weather", "value": "night"}, {"factor": "domain", "value": "sketch"}]
    assert plan["design"] == {"kind": "balanced", "values": values, "budget": 1_000}
    assert plan["renderings"][0]["edits"] == 2 * plan["images"]
    job = ask(gateway, "false", design="balanced", values=["weather=night", "domain=sketch"], budget=1_000).json()
    assert gateway.client.get(f"/jobs/{job['id']}/plan").json()["design"] == plan["design"]
    refused = ask(gateway, design="balanced", budget=1)
    assert (refused.status_code, "budget" in refused.json()["detail"]) == (422, True)


def test_the_command_line_plans_a_balanced_job(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    arguments = [str(tmp_path / "a.png"), "--task", "name it", "--design", "balanced", "--value", "weather=night"]
    result = CliRunner().invoke(
        app, ["submit", *arguments, "--dry-run", "--json", "--url", str(gateway.client.base_url)]
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["design"]["values"] == [{"factor": "weather", "value": "night"}]


@pytest.mark.slow
def test_an_adaptive_job_plans_its_first_round_within_the_budget(gateway: Gateway) -> None:
    spec: dict[str, Any] = {"design": "adaptive", "values": ["weather=night"], "budget": 40}
    plan = ask(gateway, **spec).json()
    assert (plan["design"]["kind"], plan["design"]["budget"]) == ("adaptive", 40)
    assert sum(plan["renderings"][0][kind] for kind in ("edits", "null_arms", "sham_arms")) <= 40
    job = ask(gateway, "false", **spec).json()
    with gateway.context.sessions() as session:
        first = session.get_one(JobRound, (job["id"], 0)).plan
    assert {(place.label, len(place.images)) for place in first.places} == {("bus", 4), ("car", 3)}
    assert ask(gateway, "false", design="adaptive", values=["weather=night"]).json()["id"]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"budget": 20}, "budget"),
        ({"ground_truth": "none"}, "class"),
        ({"methods": ["dillema", "lance"]}, "methods"),
        ({"methods": ["corruptions"], "values": []}, "method"),
        ({"models": []}, "models"),
    ],
)
def test_what_an_adaptive_design_cannot_steer_is_refused(gateway: Gateway, spec: dict[str, Any], named: str) -> None:
    refused = ask(gateway, **{"design": "adaptive", "values": ["weather=night"], **spec})
    assert (refused.status_code, named in refused.json()["detail"]) == (422, True)


def test_a_balanced_job_without_values_gets_those_chosen_for_it(gateway: Gateway) -> None:
    before = row_counts(gateway)
    plan = ask(gateway).json()
    assert plan["design"]["kind"] == "balanced"
    assert row_counts(gateway) == before
    assert plan["design"]["chosen_by"] == "profile"  # `tiny` declares what its editor draws
    assert [chosen["value"] for chosen in plan["design"]["values"]][:4] == ["night", "snow", "fog", "rain"]
    assert sum(plan["renderings"][0][kind] for kind in ("edits", "null_arms")) == 27 * 8  # as many as a free design
    job = ask(gateway, "false").json()
    assert gateway.client.get(f"/jobs/{job['id']}/plan").json()["design"] == plan["design"]
    assert ask(gateway, values=["weather=dusk"]).json()["design"]["values"] == [{"factor": "weather", "value": "dusk"}]
    with gateway.context.sessions() as session:
        recorded = session.scalars(select(RecordedCall.key)).all()
        first = session.get_one(JobRound, (job["id"], 0)).plan
    assert {(place.label, len(place.images)) for place in first.places} == {("bus", FIRST_IMAGES), ("car", 3)}
    ask(gateway, "false")
    with gateway.context.sessions() as session:
        assert session.scalars(select(RecordedCall.key)).all() == recorded  # a repetition asks nobody
