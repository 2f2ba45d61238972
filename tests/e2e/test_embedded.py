"""The embedded system: one process per directory, a quick stop, and resuming where it stopped."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from embedded.directory import DirectoryInUse
from embedded.run import run_embedded
from gateway.export.job import FORMATS
from shared.media.images import encode
from shared.schemas.service import SERVICES
from tests.support.extras import environment
from tests.support.http_jobs import finished
from tests.support.small_services import SmallServices, serve
from tests.support.work_site import wait_for

PICTURES = np.random.default_rng(3).integers(0, 255, (12, 12, 12, 3)).astype(np.uint8)


def post_job(url: str) -> str:
    files = [("images", (f"{n}.png", encode(picture), "image/png")) for n, picture in enumerate(PICTURES)]
    spec = b'{"task": "name the vehicle", "models": ["m1"]}'
    reply = httpx.post(f"{url}/jobs", files=[*files, ("spec", ("", spec, "application/json"))], timeout=120)
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


def is_done(url: str, job: str) -> bool:
    return bool(show(url, job)["state"] == "done")


def show(address: str, job: str) -> dict[str, Any]:
    shown: dict[str, Any] = httpx.get(f"{address}/jobs/{job}", timeout=120).json()
    return shown


@pytest.mark.slow
def test_a_stopped_system_ends_and_resumes_after_a_restart(tmp_path: Path) -> None:
    small = SmallServices(seconds=0.15)
    with serve(small) as url:
        urls = dict.fromkeys(SERVICES, url)
        with run_embedded(tmp_path, service_urls=urls, images_in_flight=4) as system:
            job = post_job(system.base_url)
            wait_for(lambda: show(system.base_url, job)["progress"]["images"]["in_progress"] > 0)
            assert show(system.base_url, job)["state"] == "running"
        with run_embedded(tmp_path, service_urls=urls) as system:
            wait_for(lambda: show(system.base_url, job)["state"] != "running")
            view = show(system.base_url, job)
            report = httpx.get(f"{system.base_url}/jobs/{job}/report", timeout=120)
    assert view["state"] == "done"
    assert view["failures"] == []
    assert report.status_code == 200


@contextmanager
def process(directory: Path, url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An embedded system in a process of its own, over these services, and its address."""
    command = [sys.executable, "-m", "tests.support.embedded_process", str(directory), url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            yield started, started.stdout.readline().strip()
        finally:
            started.kill()


@pytest.mark.slow
def test_an_interrupt_ends_the_calls_in_flight_and_a_second_one_the_process(tmp_path: Path) -> None:
    small = SmallServices()
    small.gate.clear()
    with serve(small) as url:
        with process(tmp_path, url) as (system, address):
            job = post_job(address)
            wait_for(lambda: bool(show(address, job)["progress"]["stages"]["captioning"]))
            system.send_signal(signal.SIGINT)
            assert system.wait(60) == 0
        with process(tmp_path, url) as (system, address), httpx.stream("GET", f"{address}/jobs/{job}/events"):
            assert system.stderr is not None
            system.send_signal(signal.SIGINT)
            assert "Stopping" in system.stderr.readline()
            system.send_signal(signal.SIGINT)
            assert system.wait(60) == 128 + signal.SIGINT
        small.gate.set()
        with process(tmp_path, url) as (_, address):
            wait_for(lambda: show(address, job)["state"] == "done")
            assert show(address, job)["failures"] == []


@pytest.mark.slow
def test_torch_is_whole_before_anything_computes(tmp_path: Path) -> None:
    """scipy asks a torch that another thread still imports for its Tensor, which failed analyses after a restart."""
    code = (
        "import sys; from pathlib import Path; from embedded import run; services = run._model_services\n"
        "def with_services(*arguments):\n"
        "    print(hasattr(sys.modules.get('torch'), 'Tensor'), flush=True)\n"
        "    return services(*arguments)\n"
        "run._model_services = with_services\n"
        "with run.run_embedded(Path(sys.argv[1])):\n"
        "    run.end_process()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[str]:
    """The URL of a system that sees what `make install` installs, over small services."""
    with serve(SmallServices()) as url:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.embedded_process", str(tmp_path / "data"), url],
            env=environment("embedded", tmp_path / "visible"),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
            process.communicate()


def test_the_default_installation_runs_a_job_with_its_report_and_every_export(installed: str, tmp_path: Path) -> None:
    with httpx.Client(base_url=installed, timeout=120, trust_env=False) as client:
        job = post_job(installed)
        assert finished(client, f"/jobs/{job}")["state"] == "done"
        assert client.get(f"/jobs/{job}/report").status_code == 200
        for name in FORMATS:
            reply = client.get(f"/jobs/{job}/export", params={"format": name, "verdict": "any"})
            assert reply.status_code == 200
            with tarfile.open(fileobj=io.BytesIO(reply.content)) as archive:
                assert any(member.size for member in archive.getmembers()), name


@pytest.mark.slow
def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Without it, callers would wait for a port that nothing serves."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.embedded_process", str(tmp_path / "data")],
        env=environment("embedded", tmp_path / "visible", without="onnxruntime"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        wait_for(lambda: bool(httpx.get(f"{address}/models", timeout=120).json().get("failed")))
        assert "onnxruntime" in httpx.get(f"{address}/models", timeout=120).json()["detail"]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_system_works_on_after_another_one_of_its_process_has_stopped(tmp_path: Path) -> None:
    with serve(SmallServices()) as url:
        urls = dict.fromkeys(SERVICES, url)
        with run_embedded(tmp_path / "first", service_urls=urls) as first:
            with run_embedded(tmp_path / "second", service_urls=urls) as second:
                jobs = {system.base_url: post_job(system.base_url) for system in (first, second)}
                for address, job in jobs.items():
                    wait_for(partial(is_done, address, job))
            job = post_job(first.base_url)
            wait_for(partial(is_done, first.base_url, job))


@pytest.mark.slow
def test_a_directory_serves_one_process_at_a_time(tmp_path: Path) -> None:
    urls = dict.fromkeys(SERVICES, "http://127.0.0.1:9")
    with (
        run_embedded(tmp_path, service_urls=urls),
        pytest.raises(DirectoryInUse, match="another Contrafact"),
        run_embedded(tmp_path, service_urls=urls),
    ):
        pass
    with run_embedded(tmp_path, service_urls=urls) as system:
        assert httpx.get(f"{system.base_url}/healthz", timeout=120).status_code == 200


@pytest.mark.slow
def test_a_taken_port_is_an_error_that_leaves_the_directory_free(tmp_path: Path) -> None:
    urls = dict.fromkeys(SERVICES, "http://127.0.0.1:9")
    with run_embedded(tmp_path / "first", service_urls=urls) as system:
        port = int(system.base_url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"), run_embedded(tmp_path / "second", port=port, service_urls=urls):
            pass
    with run_embedded(tmp_path / "second", service_urls=urls):
        pass
