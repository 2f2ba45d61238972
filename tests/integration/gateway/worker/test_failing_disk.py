"""A disk that has no room now and then, in the middle of a write."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from gateway.database.sessions import Sessions, migrate, open_engine, open_sessions
from gateway.database.tables import Job, SourceImage
from shared.media.storage import DirectoryStore
from tests.support.databases import ON_SQLITE
from tests.support.rows import let_time_pass
from tests.support.small_services import SmallServices, serve
from tests.support.threads import background
from tests.support.work_site import Site, wait_for, work_until


@pytest.fixture
def site(sessions: Sessions, tmp_path: Path) -> Iterator[Site]:
    small = SmallServices()
    with serve(small) as url:
        site = Site(sessions, DirectoryStore(tmp_path / "objects"), small, url)
        yield site
        site.close()


@ON_SQLITE
@pytest.mark.slow
def test_a_full_disk_costs_no_image_an_attempt(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, failures, replace = random.Random(3), 0, os.replace

    def fail_sometimes(*arguments: Any, **options: Any) -> None:
        nonlocal failures
        if chance.random() < 0.3:
            failures += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(*arguments, **options)

    def is_done() -> bool:
        with site.sessions.begin() as session:  # as if the pauses were over
            session.execute(update(SourceImage).values(not_before=None))
            session.execute(update(Job).values(not_before=None))
        return site.state() == "done"

    site.add_job(images=4)
    monkeypatch.setattr(os, "replace", fail_sometimes)
    work_until(site.worker(), is_done)
    assert failures > 3
    assert [(image.state, image.attempts, image.failure) for image in site.images()] == [("done", 0, "")] * 4


@pytest.mark.slow
def test_a_database_that_another_program_locks_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup, or a browser of SQLite files, holds the lock for longer than a transaction waits."""
    monkeypatch.setattr("gateway.database.sessions.SQLITE_BUSY_MILLISECONDS", 50)
    engine = open_engine(f"sqlite:///{tmp_path}/locked.db")
    migrate(engine)
    small, refused, ended = SmallServices(seconds=0.02), 0, threading.Event()

    def lock_again_and_again() -> None:
        with closing(sqlite3.connect(tmp_path / "locked.db", timeout=60, isolation_level=None)) as connection:
            while not ended.is_set():
                connection.execute("BEGIN IMMEDIATE")
                time.sleep(0.3)
                connection.execute("ROLLBACK")
                time.sleep(0.1)

    with serve(small) as url:
        site = Site(open_sessions(engine), DirectoryStore(tmp_path / "objects"), small, url)
        site.add_job(images=4)
        worker = site.worker()

        def is_done() -> bool:
            nonlocal refused
            try:
                worker.step()
                let_time_pass(site.sessions, 61)  # leases and pauses of steps that were broken off
                return site.state() == "done"
            except OperationalError:
                refused += 1
                return False

        with background(lock_again_and_again, release=ended.set):
            wait_for(is_done)
            ended.set()
        state = site.state()
        rows = [(image.state, image.attempts, image.failure) for image in site.images()]
        counterfactuals, _ = site.results()
        site.close()
    engine.dispose()
    assert refused
    assert (state, rows) == ("done", [("done", 0, "")] * 4)
    assert len(counterfactuals) == len(set(counterfactuals)) > 0
