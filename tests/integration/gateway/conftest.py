"""A database with an object store and small services; tests step the workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.database.sessions import Sessions
from shared.media.storage import DirectoryStore
from tests.support.small_services import SmallServices, serve
from tests.support.work_site import Site


@pytest.fixture
def small() -> SmallServices:
    """The services of `site`, which a module may override with its own."""
    return SmallServices()


@pytest.fixture
def site(sessions: Sessions, tmp_path: Path, small: SmallServices) -> Iterator[Site]:
    """A worker over small services, without a job."""
    with serve(small) as url:
        site = Site(sessions, DirectoryStore(tmp_path / "objects"), small, url)
        yield site
        site.close()
