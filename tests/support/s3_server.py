"""A real S3 server for the tests: OpenStack Swift from PyPI, in a virtual environment of its own, without root.

The environment lies in `build/swift` and is made on first use, or again when its requirements or Python change.
"""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

TESTS = Path(__file__).resolve().parent
ENVIRONMENT = TESTS.parents[1] / "build" / "swift"
REQUIREMENTS = TESTS / "swift-requirements.txt"
START_SECONDS = 300.0  # a second or two, but for machines with much else to do


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server; `endpoint` is host:port, without TLS. Swift's access keys have a colon in them."""

    endpoint: str
    access_key: str
    secret_key: str


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """OpenStack Swift on a free port of loopback. Skips where it cannot be installed; under CI that is a failure."""
    directory = tmp_path_factory.mktemp("swift")
    _refuse_without_attributes(directory)
    with _running(python_with_swift(), directory, "test:tester", "testing") as server:
        yield server


@contextmanager
def _running(python: Path, directory: Path, access_key: str, secret_key: str) -> Iterator[S3Server]:
    script = str(TESTS / "swift_server.py")
    command = [str(python), "-I", script, str(directory / "data"), access_key, secret_key]
    log = directory / "log"
    with log.open("wb") as errors:
        # The server ends when the pipe to it does, so it does not outlive us, however we end.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], START_SECONDS)
        port = process.stdout.readline().decode().strip() if readable else ""
        if not port:
            pytest.fail(f"Swift did not start; its log, {log}, ends with:\n{log.read_text()[-3000:]}")
        endpoint = f"127.0.0.1:{port}"
        httpx.get(f"http://{endpoint}/healthcheck", timeout=START_SECONDS, trust_env=False).raise_for_status()
        yield S3Server(endpoint, access_key, secret_key)
    finally:
        process.kill()
        process.communicate()


def python_with_swift() -> Path:
    """The Python of the environment. Of two test runs that want it at once, one makes it and one waits."""
    python, marker = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "made-of"
    versions = f"{sys.version}\n{REQUIREMENTS.read_text()}"
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    with ENVIRONMENT.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists() or marker.read_text() != versions:
            _run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)])
            quiet = ["-q", "--disable-pip-version-check", "--retries", "2"]
            _run([str(python), "-m", "pip", "install", *quiet, "-r", str(REQUIREMENTS)])
            marker.write_text(versions)
    return python


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        output = (error.stderr or error.stdout).strip().splitlines()[-1:]
        _give_up(f"cannot install OpenStack Swift, the S3 server of these tests: {' '.join(output) or error}")


def _give_up(reason: str) -> NoReturn:
    """Skip by name, or fail where tests must not be skipped."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _refuse_without_attributes(directory: Path) -> None:
    probe = directory / "probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.probe", bytes(2000))
    except OSError as error:
        pytest.fail(
            f"Swift keeps what it knows of objects in extended attributes, which the filesystem of {directory} has not"
            f" ({error.strerror}): choose a directory on another filesystem with `pytest --basetemp`"
        )
