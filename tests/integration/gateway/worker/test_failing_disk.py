"""A disk that has no room now and then, in the middle of a write."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import threading
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


def is_done_without_pauses(site: Site) -> bool:
    """Whether the job is done; its pauses end here."""
    with site.sessions.begin() as session:
        session.execute(update(SourceImage).values(not_before=None))
        session.execute(update(Job).values(not_before=None))
    return site.state() == "done"


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

    site.add_job(images=4)
    monkeypatch.setattr(os, "replace", fail_sometimes)
    work_until(site.worker(), lambda: is_done_without_pauses(site))
    assert failures > 3
    assert [(image.state, image.attempts, image.failure) for image in site.images()] == [("done", 0, "")] * 4


@pytest.mark.slow
def test_a_database_that_another_program_locks_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup, or a browser of SQLite files, holds the lock for longer than a transaction waits."""
    monkeypatch.setattr("gateway.database.sessions.SQLITE_BUSY_MILLISECONDS", 50)
    engine = open_engine(f"sqlite:///{tmp_path}/locked.db")
    migrate(engine)
    leased = f"SELECT count(*) FROM {SourceImage.__tablename__} WHERE state = 'leased'"
    small, locked, ended = SmallServices(seconds=0.1), threading.Event(), threading.Event()

    def lock_while_images_are_leased() -> None:
        with closing(sqlite3.connect(tmp_path / "locked.db", timeout=300, isolation_level=None)) as connection:
            wait_for(lambda: connection.execute(leased).fetchone()[0] > 0, beat=0.01)
            connection.execute("BEGIN IMMEDIATE")
            locked.set()
            ended.wait(300)
            connection.execute("ROLLBACK")

    with serve(small) as url:
        site = Site(open_sessions(engine), DirectoryStore(tmp_path / "objects"), small, url)
        site.add_job(images=4)
        worker = site.worker()
        with background(lock_while_images_are_leased, release=ended.set):
            with pytest.raises(OperationalError, match="locked"):
                worker.step()
            assert locked.is_set()
            ended.set()
        assert site.state() == "running"
        let_time_pass(site.sessions, 61)  # the leases of steps that were broken off
        work_until(worker, lambda: is_done_without_pauses(site))
        rows = [(image.state, image.attempts, image.failure) for image in site.images()]
        counterfactuals, _ = site.results()
        site.close()
    engine.dispose()
    assert rows == [("done", 0, "")] * 4
    assert len(counterfactuals) == len(set(counterfactuals)) > 0
