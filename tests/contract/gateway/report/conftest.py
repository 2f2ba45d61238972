"""A drawn job with its report."""

from __future__ import annotations

import pytest

from gateway.database.sessions import Sessions, open_engine, open_sessions
from gateway.report.build import build_report
from shared.media.storage import DirectoryStore
from shared.schemas.results import JobResults
from tests.support.drawn_job import add_drawn_job
from tests.support.snapshots import migrated_bytes

Measured = tuple[Sessions, DirectoryStore, JobResults, str]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """A drawn job with its report."""
    directory = tmp_path_factory.mktemp("drawn")
    (directory / "contrafact.db").write_bytes(migrated_bytes())
    engine = open_engine(f"sqlite:///{directory}/contrafact.db")
    sessions, store = open_sessions(engine), DirectoryStore(directory / "objects")
    add_drawn_job(sessions, store)
    results = build_report(sessions, store, "drawn")
    return sessions, store, results, store.get("reports/drawn/report.html").decode()
