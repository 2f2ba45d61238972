"""Model service processes whose device breaks: they report it, exit, and work after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from shared.service.model_health import EXIT_CODE
from tests.support.broken_service import UNLUCKY
from tests.support.processes import UVICORN, Program, free_port
from tests.support.threads import background
from tests.support.work_site import wait_for

PATIENCE = 120.0  # seconds, which only a hang takes
HTTP = httpx.Client(timeout=PATIENCE, trust_env=False, headers={"Connection": "close"})


@contextmanager
def serving(name: str, directory: Path) -> Iterator[tuple[Program, str]]:
    """A service of `tests.support.broken_service` that is ready, and its address."""
    with process(name, directory) as (program, url):
        program.wait()
        yield program, url


@contextmanager
def process(name: str, directory: Path) -> Iterator[tuple[Program, str]]:
    """A service of `tests.support.broken_service`, started, and its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [*UVICORN, f"tests.support.broken_service:{name}", "--port", str(port)]
    program = Program(name, command, lambda: status(f"{url}/readyz") == 200, directory / "log")
    program.start()
    try:
        yield program, url
    finally:
        program.kill()


def status(url: str) -> int:
    """The status of a GET; 0 if nobody answers."""
    with suppress(httpx.TransportError):
        return HTTP.get(url).status_code
    return 0


def ask(url: str, number: int) -> httpx.Response:
    return HTTP.post(f"{url}/v1/squares", json={"number": number})


def exit_code(program: Program) -> int:
    assert program.process is not None
    process, program.process = program.process, None
    process.communicate(timeout=PATIENCE)
    return process.returncode


def critical_lines(program: Program) -> list[str]:
    lines = [json.loads(line) for line in program.log.read_text().splitlines() if line.startswith("{")]
    return [line["message"] for line in lines if line["level"] == "critical"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cause"), [("raising", "CUDA error: an illegal"), ("panicking", "Panic")])
def test_a_service_whose_device_fails_answers_ends_and_comes_back(name: str, cause: str, tmp_path: Path) -> None:
    with serving(name, tmp_path) as (program, url):
        assert ask(url, 3).json() == {"number": 9}
        reply = ask(url, UNLUCKY)
        assert (reply.status_code, reply.json()["type"]) == (503, "urn:contrafact:problem:device-failed")
        assert [status(url + path) for path in ("/healthz", "/readyz")] == [503, 503]
        assert ask(url, 3).json()["type"] == "urn:contrafact:problem:not-ready"
        assert exit_code(program) == EXIT_CODE
        (message,) = critical_lines(program)
        assert cause in message
        program.wait()  # as an orchestrator does
        assert ask(url, 3).json() == {"number": 9}


@pytest.mark.slow
def test_a_service_whose_batch_never_ends_fails_its_probe_and_ends(tmp_path: Path) -> None:
    with serving("hanging", tmp_path) as (program, url):
        assert status(f"{url}/healthz") == 200

        def ask_in_vain() -> None:
            with suppress(httpx.TransportError):
                ask(url, UNLUCKY)

        with background(ask_in_vain):
            wait_for(lambda: status(f"{url}/healthz") == 503, PATIENCE)
            assert exit_code(program) == EXIT_CODE
        (message,) = critical_lines(program)
        assert "CONTRAFACT_MAX_BATCH_SECONDS" in message


@pytest.mark.slow
def test_a_service_that_lacks_memory_for_its_weights_ends_so_that_it_is_started_again(tmp_path: Path) -> None:
    with process("crowded", tmp_path) as (program, _):
        assert exit_code(program) == EXIT_CODE
        (message,) = critical_lines(program)
        assert "CUDA out of memory" in message


@pytest.mark.slow
def test_a_lack_of_memory_that_a_library_reports_is_no_broken_device(tmp_path: Path) -> None:
    with serving("memory", tmp_path) as (program, url):
        reply = ask(url, UNLUCKY)
        assert (reply.status_code, reply.json()["type"]) == (503, "urn:contrafact:problem:out-of-memory")
        assert status(f"{url}/healthz") == 200
        assert ask(url, 3).json() == {"number": 9}
        assert program.alive
