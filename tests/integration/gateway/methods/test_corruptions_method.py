"""Corruptions: their rows and requests, and a job of them with the shipped models."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import ValidationError

from diffusion_service.app import create_app as create_diffusion_service
from embedded.run import run_embedded
from evaluator_service.app import create_app as create_evaluator_service
from gateway.jobs.choices import methods_listing
from gateway.jobs.sensitivity import GroupedTruth, sensitivity_of
from gateway.methods import read_method
from gateway.methods.checks import RENDERED_CHECKS
from gateway.methods.corruptions import ALL, CorruptionsParameters, corruptions
from gateway.methods.counterfactual import MethodImage, TaskDescription
from shared.media.images import encode
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload, JsonObject
from shared.schemas.diffusion import SEVERITIES
from shared.schemas.service import SERVICES
from shared.service.settings import ServiceSettings
from tests.support.http_jobs import finished
from tests.support.listening import listen
from tests.support.logged_requests import LoggedServices
from tests.support.small_services import CLASSES, SmallServices, serve
from tinyworld.objects.demo import write_demo

TASK = TaskDescription("name the vehicle", tuple(CLASSES))
TWO = CorruptionsParameters(corruptions=("fog", "jpeg"))


def source(name: str = "source-1") -> MethodImage:
    return MethodImage(name, ImagePayload(png=encode(np.full((32, 32, 3), 128, np.uint8))), "car")


def test_every_corruption_has_a_row_for_each_severity_and_one_null_arm(services: LoggedServices) -> None:
    rows = list(corruptions(source(), TASK, services, TWO, 1))
    *edits, null = rows
    assert [row.ordinal for row in rows] == list(range(11))
    assert [row.edit.changes[0].to_value for row in edits if row.edit] == [
        f"{way} {severity}" for way in ("fog", "jpeg") for severity in SEVERITIES
    ]
    assert {(row.arm, row.null_ordinal, row.verdict.accepted) for row in edits} == {("edit", 10, True)}
    assert (null.arm, null.edit, null.null_ordinal) == ("null", None, None)
    assert null.image == source().image, "the null arm is the unchanged image"
    assert all(row.lineage["skipped_checks"] == list(RENDERED_CHECKS) for row in rows)
    assert all(row.evaluations == 0 for row in rows)


def test_a_seed_belongs_to_the_image_and_the_way_and_severities_share_it(services: LoggedServices) -> None:
    for name, seed in (("source-1", 1), ("source-2", 1), ("source-1", 2), ("source-1", 1)):
        list(corruptions(source(name), TASK, services, TWO, seed))
    seeds = [
        {corruption.seed for corruption in request.corruptions}
        for request in services.corruptions
        if len(request.corruptions) == 5
    ]
    assert all(len(shared) == 1 for shared in seeds)
    assert len({seed for shared in seeds for seed in shared}) == 6
    assert seeds[:2] == seeds[-2:]


def test_senseless_parameters_are_refused() -> None:
    assert CorruptionsParameters().corruptions == ALL
    for wrong in ([], ["fog", "fog"], ["hail"]):
        with pytest.raises(ValidationError, match="corruptions"):
            CorruptionsParameters.model_validate({"corruptions": wrong})


def test_they_are_listed_with_the_profiles_defaults_and_counted_in_plans() -> None:
    (listed,) = [method for method in methods_listing(load_profile("tiny")).methods if method.name == "corruptions"]
    properties = listed.parameters["properties"]
    assert isinstance(properties, dict)
    assert properties["corruptions"]["default"] == ["gaussian_noise", "motion_blur", "fog", "jpeg"]  # type: ignore[call-overload,index]
    parameters: JsonObject = {"corruptions": ["gaussian_noise", "motion_blur", "fog", "jpeg"]}
    sensitivity = sensitivity_of([GroupedTruth(["car"], None)] * 40, [read_method("corruptions", parameters)])
    assert sensitivity.family == 4 * 5


@pytest.mark.slow
def test_a_job_on_the_shipped_models_ends_with_failure_points(tmp_path: Path) -> None:
    manifest = write_demo(tmp_path / "pictures", ["bus", "car"], 3)
    files: list[Any] = [
        ("images", (path.name, path.read_bytes(), "image/png")) for path in sorted(manifest.parent.glob("*.png"))
    ]
    spec = b'{"task": "classify the vehicle", "methods": ["corruptions"], "models": ["street-classifier"]}'
    files += [("manifest", ("manifest.csv", manifest.read_bytes())), ("spec", ("", spec, "application/json"))]
    settings = ServiceSettings(profile="tiny", device="cpu", threads=1)
    with ExitStack() as stack:
        urls = dict.fromkeys(SERVICES, stack.enter_context(serve(SmallServices())))
        urls["diffusion_service"] = stack.enter_context(listen(create_diffusion_service(settings)))
        urls["evaluator_service"] = stack.enter_context(listen(create_evaluator_service(settings)))
        system = stack.enter_context(run_embedded(tmp_path / "data", service_urls=urls))
        client = stack.enter_context(httpx.Client(base_url=system.base_url, timeout=60))
        job = posted(client, files)
        results = client.get(f"/jobs/{job}/results").json()["metrics"]
        points = client.get(f"/jobs/{job}/failure-points", params={"limit": 4}).json()
        next_page = client.get(f"/jobs/{job}/failure-points", params={"cursor": points["next"]}).json()
        report = client.get(f"/jobs/{job}/report").text
    (result,) = results["results"]
    assert result["metrics"]["accuracy"][0]["nulls"]["count"] == 6, "the classifier is right on its own distribution"
    assert result["counterfactuals"] == 6 * 4 * 5
    by_way = {points["corruption"]: points for points in result["failure_points"]}
    assert sorted(by_way) == ["fog", "gaussian noise", "jpeg", "motion blur"]
    assert all(points["sources"] == sum(points["first"]) + points["never"] == 6 for points in by_way.values())
    assert by_way["gaussian noise"]["never"] < 6, "noise of 0.38 breaks a classifier that never saw any"
    images = points["images"] + next_page["images"]
    assert [image["position"] for image in images] == list(range(6))
    assert next_page["next"] is None
    for way, points in by_way.items():
        severities = [point["severity"] for image in images for point in image["points"] if point["corruption"] == way]
        assert [severities.count(severity) for severity in SEVERITIES] == points["first"]
    assert "Failure points" in report
    assert "half fail by" in report


def posted(client: httpx.Client, files: list[Any]) -> str:
    """The id of a job, once it is done."""
    reply = client.post("/jobs", files=files)
    assert reply.status_code == 202, reply.text
    job = str(reply.json()["id"])
    assert finished(client, f"/jobs/{job}")["state"] == "done"
    return job
