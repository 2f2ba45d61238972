"""A real gateway to attack, on SQLite and Postgres, and a fixture that watches memory, time and files."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.databases import postgres_database
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.memory import PeakMemory

MAX_SECONDS = 40.0  # of one case, on the processor; the slowest takes five, and not all processors are fast
MAX_GROWTH = 450 * 1024**2  # bytes of memory at the worst moment of a case
STORED = re.compile(r"images/[0-9a-f]{2}/[0-9a-f]{64}\.png|\.link-secret")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway under its default limits; no worker runs."""
    directory = tmp_path_factory.mktemp("attacked")
    with ExitStack() as stack:
        url = None
        if request.param == "postgres":
            url = stack.enter_context(postgres_database(request.getfixturevalue("postgres_url")))
        served = stack.enter_context(serve_gateway(directory, url))
        served.client.timeout = 120  # on a busy machine
        yield served


@pytest.fixture
def watch(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a case that takes long or much memory, leaves temporary files, or writes beside the store's images."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    memory = PeakMemory()
    started = time.process_time()
    yield
    assert time.process_time() - started < MAX_SECONDS
    assert memory.growth() < MAX_GROWTH
    assert not list(temporary.iterdir())
    if "gateway" in request.fixturenames:
        check_directory(request.getfixturevalue("gateway").directory)


def check_directory(directory: Path) -> None:
    """Beside its database the gateway writes images under their digests, what signs links, and nothing else."""
    for path in directory.rglob("*"):
        if path.is_file() and not path.name.startswith("contrafact.db"):
            assert STORED.fullmatch(path.relative_to(directory / "objects").as_posix()), path
