"""SIGTERM: a gateway closes its event streams, a model service finishes its requests, and both exit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from gateway.database.events import add_event
from gateway.database.sessions import migrate, open_engine, open_sessions
from gateway.database.tables import LOCAL_OWNER, Job, Owner, SourceImage
from shared.media.storage import DirectoryStore
from tests.support.http_jobs import queue_length, wait_until_ready
from tests.support.processes import UVICORN, free_port
from tests.support.small_services import SmallServices, serve
from tests.support.threads import background
from tests.support.work_site import Site, wait_for

PATIENCE = 300.0  # seconds, which only a hang takes


@contextmanager
def running(
    command: list[str], log: Path, environment: Mapping[str, str], port: int
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process that is ready on this port, and its address."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=file)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(f"{url}/readyz", process, log)
        yield process, url
    finally:
        process.kill()
        process.wait()


@contextmanager
def served(app: str, log: Path, environment: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process of `uvicorn --factory app` that is ready, and its address."""
    port = free_port()
    command = [*UVICORN, app, "--port", str(port)]
    with running(command, log, environment, port) as process:
        yield process


def stop(process: subprocess.Popen[bytes]) -> None:
    """Tell it to stop, and wait until it has."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) in (0, -signal.SIGTERM)


@pytest.mark.slow
def test_a_gateway_that_stops_ends_its_event_streams(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'contrafact.db'}"
    engine = open_engine(url)
    migrate(engine)
    with open_sessions(engine).begin() as session:
        session.add(Owner(id=LOCAL_OWNER, name="local"))
        session.flush()
        session.add(Job(id="job", owner_id=LOCAL_OWNER, task_description="x", methods=[], profile="tiny"))
        session.flush()
        session.add(SourceImage(id="image", job_id="job", position=0))
        add_event(session, "job", "job", {"state": "running"})
    engine.dispose()
    environment = {"CONTRAFACT_DATABASE_URL": url, "CONTRAFACT_OBJECT_STORE": f"directory:{tmp_path / 'objects'}"}
    log = tmp_path / "log"
    stream: list[str] = []
    first = threading.Event()

    def follow(address: str) -> None:
        with httpx.stream("GET", f"{address}/jobs/job/events", timeout=PATIENCE) as reply:
            for text in reply.iter_lines():
                stream.append(text)
                first.set()
        stream.append("the end")

    with (
        served("gateway.app:create_app", log, environment) as (process, address),
        background(partial(follow, address)),
    ):
        assert first.wait(PATIENCE)
        stop(process)
    assert stream[-1] == "the end"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["message"] for line in lines if line["logger"] == "contrafact.http"] == ["GET /jobs/job/events"]


@pytest.mark.slow
def test_a_worker_answers_probes_and_stops(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'contrafact.db'}"
    engine = open_engine(url)
    migrate(engine)
    engine.dispose()
    port = free_port()
    environment = {
        "CONTRAFACT_DATABASE_URL": url,
        "CONTRAFACT_OBJECT_STORE": f"directory:{tmp_path / 'objects'}",
        "CONTRAFACT_METRICS_PORT": str(port),
    }
    log = tmp_path / "log"
    with running([sys.executable, "-m", "gateway.worker"], log, environment, port) as (process, address):
        assert httpx.get(f"{address}/healthz", timeout=60).json() == {"status": "alive"}
        assert "contrafact_step_seconds" in httpx.get(f"{address}/metrics", timeout=60).text
        stop(process)
    assert all(json.loads(line)["time"] for line in log.read_text().splitlines())


@pytest.mark.slow
def test_a_worker_that_stops_ends_its_calls_and_releases_its_image(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'contrafact.db'}"
    engine = open_engine(url)
    migrate(engine)
    small, port = SmallServices(), free_port()
    small.gate.clear()
    with serve(small) as services:
        site = Site(open_sessions(engine), DirectoryStore(tmp_path / "objects"), small, services)
        site.add_job(images=1)
        environment = {
            "CONTRAFACT_DATABASE_URL": url,
            "CONTRAFACT_OBJECT_STORE": f"directory:{tmp_path / 'objects'}",
            "CONTRAFACT_METRICS_PORT": str(port),
            "CONTRAFACT_SWEEP_SECONDS": "0.3",
            **{f"CONTRAFACT_{name}_URL": services for name in ("CAPTION", "LLM", "DIFFUSION", "EVALUATOR")},
        }
        with running([sys.executable, "-m", "gateway.worker"], tmp_path / "log", environment, port) as (process, _):
            wait_for(lambda: site.images()[0].stage == "captioning")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) in (0, -signal.SIGTERM)
        small.gate.set()
        (image,) = site.images()
    engine.dispose()
    assert (image.state, image.attempts, image.lost_leases) == ("pending", 0, 0)


@pytest.mark.slow
def test_a_model_service_that_stops_answers_its_open_requests(tmp_path: Path) -> None:
    replies: list[httpx.Response] = []
    log = tmp_path / "log"
    with served("tests.support.slow_service:create_app", log, {}) as (process, address):

        def ask(number: int) -> None:
            replies.append(httpx.post(f"{address}/v1/squares", json={"number": number}, timeout=PATIENCE))

        with background(partial(ask, 3), partial(ask, 4)):
            wait_for(lambda: queue_length(address) == 1, beat=0.02)  # one is being squared, the other waits
            stop(process)
    assert sorted(reply.json()["square"] for reply in replies) == [9, 16]
    assert all(json.loads(line)["time"] for line in log.read_text().splitlines())
