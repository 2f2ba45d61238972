"""The main job on a deployment: each program a process, real servers, small real models, an orderly stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from shared.media.storage import image_key
from shared.schemas.service import SERVICES
from tests.support.deployment import TINY, Deployment, deployed
from tinyworld.objects.demo import write_demo

PARAMETERS = {"counterfactuals_per_image": 2, "steps": 2}


def contrafact(deployment: Deployment, *arguments: str | Path) -> str:
    """What the command line prints, as a user of the deployment would see it."""
    environment = {**os.environ, "CONTRAFACT_URL": gateway_url(deployment), "CONTRAFACT_API_KEY": deployment.key}
    command = [str(Path(sys.executable).with_name("contrafact")), *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert result.returncode == 0, result.stderr
    return result.stdout


def gateway_url(deployment: Deployment) -> str:
    return f"http://127.0.0.1:{deployment.programs['gateway'].command[-1]}"


@pytest.mark.slow
def test_the_main_job_over_http_and_an_orderly_end(tmp_path: Path) -> None:
    write_demo(tmp_path / "images", ("bus", "car"), 2)
    with deployed(tmp_path, TINY, workers=2) as deployment:
        client = deployment.client
        assert httpx.get(f"{gateway_url(deployment)}/jobs", timeout=30).status_code == 401
        settings = [f"{name}={value}" for name, value in PARAMETERS.items()]
        options = [word for setting in settings for word in ("--set", setting)]
        arguments = ["--task", "classify the vehicle", "--method", "dillema", *options, "--wait"]
        submitted = contrafact(deployment, "submit", tmp_path / "images", *arguments)
        job = client.jobs().jobs[0].id
        assert submitted.startswith(job)
        detail = client.job(job)
        assert (detail.state, detail.progress.images.done, detail.progress.images.failed) == ("done", 4, 0)
        views = list(client.counterfactuals(job, {}))
        assert views
        images = [view.image for view in views if view.image is not None]
        assert images, [view.verdict for view in views]
        assert all(deployment.store.exists(image_key(digest)) for digest in images)
        assert client.image(images[0]).startswith(b"\x89PNG")
        metrics = client.results(job, {}, limit=1).metrics
        assert metrics is not None
        assert len(metrics.results) == 2
        assert client.report(job).startswith(b"<!doctype html>")
        assert [event.payload["state"] for event in client.events(job)][-1] == "done"
        ports = [int(deployment.programs[name].command[-1]) for name in (*SERVICES, "gateway")]
        for name, program in deployment.programs.items():
            if name in (*SERVICES, "gateway") or name.startswith("worker"):
                # uvicorn ends by the signal that it was sent, after its shutdown.
                assert program.stop(120) in (0, -signal.SIGTERM), f"{name}: {program.log.read_text()[-2000:]}"
        for port in ports:
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0
