"""A disk that has no room now and then, in the middle of a write."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from gateway.database.sessions import Sessions
from gateway.database.tables import Job, SourceImage
from shared.media.storage import DirectoryStore
from tests.support.databases import ON_SQLITE
from tests.support.small_services import SmallServices, serve
from tests.support.work_site import Site, work_until


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
