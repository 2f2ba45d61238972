"""Jobs of images that the profile's models do not know. The evaluator answers by arithmetic: white is outside."""

from __future__ import annotations

import hashlib
import io
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from contrafact.cli import app
from contrafact.client import Client
from contrafact.job_files import plan_job
from gateway.database.tables import LOCAL_OWNER
from gateway.intake.sources import NamedFile
from gateway.jobs.submit import Submission, plan_submission
from shared.profiles.profile import load_profile
from shared.schemas.jobs import JobSpec, MethodChoice
from tests.support.archives import zipped
from tests.support.gateway_under_test import Gateway, picture

TASK = "classify the vehicle"
WHITE = picture(255)


def digest_of(png: bytes) -> str:
    return hashlib.sha256(png).hexdigest()


def ask(gateway: Gateway, *pictures: bytes, dry_run: bool = True, **spec: Any) -> httpx.Response:
    files = {"images": ("set.zip", zipped({f"{number}.png": data for number, data in enumerate(pictures)}))}
    data = {"spec": json.dumps({"task": TASK, **spec})}
    return gateway.client.post("/jobs", params={"dry_run": dry_run}, files=files, data=data)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_job_of_other_images_is_refused_unless_it_is_forced(gateway: Gateway, dry_run: bool) -> None:
    refused = ask(gateway, WHITE, dry_run=dry_run)
    assert refused.status_code == 422
    for words in ("profile tiny", "photographs", "outside_domain", "--outside-domain"):
        assert words in refused.json()["detail"]
    forced = ask(gateway, WHITE, dry_run=dry_run, outside_domain=True).json()
    plan = forced if dry_run else gateway.client.get(f"/jobs/{forced['id']}/plan").json()
    assert "the image is something else" in plan["outside_domain"]


def test_one_odd_image_is_mentioned_and_does_not_stop_the_job(gateway: Gateway) -> None:
    drawn = [picture(shade) for shade in range(20, 23)]
    assert "1 of 4" in ask(gateway, WHITE, *drawn).json()["outside_domain"]
    assert ask(gateway, *drawn).json()["outside_domain"] == ""
    assert ask(gateway, WHITE, picture(255, 17), drawn[0]).status_code == 422


def test_methods_without_a_generator_take_all_images(gateway: Gateway) -> None:
    assert ask(gateway, WHITE, methods=["corruptions"]).json()["outside_domain"] == ""
    assert ask(gateway, WHITE, methods=["corruptions", "dillema"]).status_code == 422


def test_the_segmenter_cuts_no_objects_out_of_other_images(gateway: Gateway) -> None:
    """Its masks of photographs were arbitrary regions, and the job said nothing."""
    assert ask(gateway, WHITE, picture(255, 17), methods=["compose"]).status_code == 422
    assert ask(gateway, picture(20), picture(21), methods=["compose"]).json()["outside_domain"] == ""
    profile = gateway.context.profile
    remover = load_profile("photographs").diffusion.background_remover
    diffusion = profile.diffusion.model_copy(update={"background_remover": remover})
    removing = replace(gateway.context, profile=profile.model_copy(update={"diffusion": diffusion}))
    spec = JobSpec(task_description=TASK, methods=[MethodChoice(name="compose")])
    files = [NamedFile(f"{side}.png", io.BytesIO(picture(255, side))) for side in (16, 17)]
    assert plan_submission(removing, LOCAL_OWNER, Submission(spec, files)).outside_domain == ""


def test_a_profile_without_a_domain_takes_all_images(gateway: Gateway) -> None:
    profile = gateway.context.profile
    evaluator = profile.evaluator.model_copy(update={"domain": None})
    anywhere = replace(gateway.context, profile=profile.model_copy(update={"evaluator": evaluator}))
    submission = Submission(JobSpec(task_description=TASK), [NamedFile("1.png", io.BytesIO(WHITE))])
    assert plan_submission(anywhere, LOCAL_OWNER, submission).outside_domain == ""


def test_uploaded_images_are_looked_at(gateway: Gateway) -> None:
    gateway.client.put(f"/images/{digest_of(WHITE)}", content=WHITE)
    request = {"task": TASK, "images": [{"digest": digest_of(WHITE)}]}
    assert gateway.client.post("/jobs?dry_run=true", json=request).status_code == 422
    assert gateway.client.post("/jobs", json=request).status_code == 422


@pytest.mark.slow
def test_the_command_line_refuses_files_before_it_uploads_them(gateway: Gateway, tmp_path: Path) -> None:
    for number in range(40):
        path = tmp_path / "cats" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture(255, 16 + number))
    command = ["submit", str(tmp_path / "cats"), "--task", TASK, "--url", str(gateway.client.base_url)]
    stored = sum(1 for _ in gateway.context.store.iterate())
    refused = CliRunner().invoke(app, [*command, "--dry-run"])
    assert (refused.exit_code, "--outside-domain" in refused.output) == (3, True)
    assert sum(1 for _ in gateway.context.store.iterate()) == stored
    forced = CliRunner().invoke(app, [*command, "--dry-run", "--outside-domain"])
    assert "16 of 16 images looked at are something else" in " ".join(forced.output.split())
    assert CliRunner().invoke(app, command).exit_code == 3
    assert CliRunner().invoke(app, [*command, "--outside-domain"]).exit_code == 0


def test_the_form_refuses_beside_its_files_and_has_a_box(gateway: Gateway) -> None:
    fields = {"task": TASK, "methods": "dillema"}
    files = {"images": ("cat.png", WHITE)}
    refused = gateway.client.post("/", data=fields, files=files, headers={"Accept": "application/json"}).json()
    assert (refused["field"], "Test them all the same" in refused["detail"]) == ("images", True)
    listed = json.dumps({"images": [{"digest": "0" * 64, "name": "cat.png"}]})
    fragment = gateway.client.post("/plan", data={**fields, "listed": listed}, files=files).text
    assert 'data-field="images"' in fragment
    unseen = gateway.client.post("/plan", data={**fields, "listed": listed}, files={"manifest": ("", b"")})
    assert 'data-ready="true"' in unseen.text
    forced = gateway.client.post("/", data={**fields, "outside_domain": "true"}, files=files)
    assert forced.status_code == 303


def test_a_dry_run_of_the_command_line_looks_at_the_images_that_a_job_looks_at(
    gateway: Gateway, tmp_path: Path
) -> None:
    """It took every second of 30 images."""
    pictures = [picture(255, 80 + size) for size in range(8)] + [picture(shade) for shade in range(30, 52)]
    folder = tmp_path / "set"
    folder.mkdir()
    for number, data in enumerate(pictures):
        (folder / f"{number}.png").write_bytes(data)
    spec = JobSpec.model_validate({"task": TASK, "models": []})
    sent = ask(gateway, *pictures, models=[]).json()["outside_domain"]
    assert "of 16 images" in sent

    with closing(Client(str(gateway.client.base_url))) as client:
        planned = plan_job(client, spec, [folder], None, (), Console(quiet=True))
    assert planned.outside_domain == sent
