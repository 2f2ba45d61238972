"""A profile calibrated on a real job of the small models: reviews over HTTP, the command, and a calibrated job."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from contrafact.cli import app
from contrafact.client import Client
from embedded.run import run_embedded
from shared.media.images import encode
from shared.profiles.profile import load_profile, shipped_profiles
from shared.profiles.weights import REPOSITORY
from shared.schemas.results import CounterfactualView, JobResults
from shared.schemas.reviews import ReviewRequest
from shared.seeds import derive_seed
from tinyworld.objects.render import render
from tinyworld.objects.world import sample_scene

PICTURES = 24
VALID = {True: 0.75, False: 0.3}  # share of valid images among accepted and among rejected ones


def draw_pictures(folder: Path) -> None:
    """Pictures of buses by day."""
    (folder / "bus").mkdir(parents=True)
    scenes = (sample_scene("demo", index) for index in range(10_000))
    by_day = (scene for scene in scenes if scene.label == "bus" and scene.time == "day")
    for number, scene in zip(range(PICTURES), by_day, strict=False):
        (folder / "bus" / f"{number}.png").write_bytes(encode(render(scene).image))


def contrafact(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"CONTRAFACT_URL": url})
    assert result.exit_code == 0, result.output
    return result.stdout


def submit(url: str, testset: Path, *options: str) -> str:
    command = ("submit", str(testset), "--task", "classify the vehicle in the street", "--method", "dillema")
    return contrafact(url, *command, "--model", "street-classifier", "--wait", *options).splitlines()[0]


def is_valid(view: CounterfactualView) -> bool:
    """The truth about an image, which the test decides: the checks err at known rates."""
    seed = derive_seed("truth", view.source.position, view.ordinal)
    return bool(np.random.default_rng(seed).random() < VALID[view.verdict.accepted])


def review_sample(client: Client, url: str, job: str, truth: dict[str, bool]) -> None:
    """Review what the page shows, until nothing is left."""
    for _ in truth:
        page = httpx.get(f"{url}/jobs/{job}/review?sample=calibration", timeout=300).text
        form = re.search(r'<form id="review" action="/jobs/\w+/reviews/(\w+)"', page)
        assert form
        client.review(job, form[1], ReviewRequest(verdict="valid" if truth[form[1]] else "invalid"))
    assert "Nothing left" in httpx.get(f"{url}/jobs/{job}/review?sample=calibration", timeout=300).text


@pytest.mark.slow
def test_a_job_is_reviewed_and_the_next_one_is_calibrated(tmp_path: Path) -> None:
    draw_pictures(tmp_path / "testset")
    tiny = shipped_profiles()["tiny"].read_text(encoding="utf-8")
    profile = tmp_path / "ours.toml"
    profile.write_text(tiny.replace('"tinyworld/', f'"{REPOSITORY.as_posix()}/tinyworld/'))
    with run_embedded(tmp_path / "data", str(profile)) as system:
        client = Client(system.base_url)
        job = submit(system.base_url, tmp_path / "testset")
        views = [view for view in client.counterfactuals(job, {}) if view.image is not None]
        truth = {view.id: is_valid(view) for view in views}
        accepted = {view.id: view.verdict.accepted for view in views}
        assert min(sum(truth.values()), len(truth) - sum(truth.values())) >= 10
        review_sample(client, system.base_url, job, truth)
        (method,) = client.calibration(job).methods
        pooled = method.errors[0]
        assert (method.answered, method.rendered) == (len(views), len(views))
        assert pooled.accepted_if_invalid.count == sum(accepted[name] and not truth[name] for name in truth)
        assert pooled.rejected_if_valid.count == sum(truth[name] and not accepted[name] for name in truth)
        contrafact(system.base_url, "calibrate", job, "--profile", str(profile), "--write", "--data", "streets")
        client.close()
    measured = load_profile(str(profile)).calibration["streets"]
    with run_embedded(tmp_path / "data", str(profile)) as system:
        client = Client(system.base_url)
        uncalibrated = _metrics(client, submit(system.base_url, tmp_path / "testset"))
        calibrated = _metrics(client, submit(system.base_url, tmp_path / "testset", "--calibration", "streets"))
        client.close()
    assert uncalibrated.provisional
    assert not calibrated.provisional
    assert calibrated.calibration is not None
    assert (calibrated.calibration.data, calibrated.calibration.not_used) == ("streets", "")
    assert calibrated.calibration.errors == measured.methods
    cells = [effect for result in calibrated.results for effect in result.cells if effect.q_value is not None]
    assert all(effect.among_valid is not None for effect in cells)


def _metrics(client: Client, job: str) -> JobResults:
    metrics = client.results(job, {}, limit=1).metrics
    assert metrics is not None
    return metrics
