"""A finished job with a weakness, to confirm and to dose."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from sqlalchemy import update

from gateway.database.sessions import Sessions
from gateway.database.tables import Job, Prediction
from gateway.report.build import build_report
from shared.media.storage import ObjectStore
from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.snapshots import Snapshot, take_snapshot

NAMES = {"night-bus": "m1", "sound": "m2"}


@pytest.fixture
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A finished job `drawn` whose model `m1` fails on buses at night, with its report."""
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as served:
        _finished().restore(served.context.sessions, served.context.store)
        yield served


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """As `gateway`, for tests of a module that only read, or are refused."""
    with serve_gateway(tmp_path_factory.mktemp("unchanged")) as served:
        _finished().restore(served.context.sessions, served.context.store)
        yield served


@cache
def _finished() -> Snapshot:
    def fill(sessions: Sessions, store: ObjectStore) -> None:
        add_drawn_job(sessions, store, per_class=14)
        with sessions.begin() as session:
            session.execute(update(Job).values(models=list(NAMES.values())))
            for old, new in NAMES.items():
                session.execute(update(Prediction).where(Prediction.model == old).values(model=new))
        build_report(sessions, store, "drawn", [])

    return take_snapshot(fill)
