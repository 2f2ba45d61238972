"""A finished job with a weakness, to confirm and to dose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import update

from gateway.database.tables import Job, Prediction
from gateway.report.build import build_report
from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import Gateway, serve_gateway

NAMES = {"night-bus": "m1", "sound": "m2"}


@pytest.fixture
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A finished job `drawn` whose model `m1` fails on buses at night, with its report."""
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as served:
        sessions = served.context.sessions
        add_drawn_job(sessions, served.context.store, per_class=14)
        with sessions.begin() as session:
            session.execute(update(Job).values(models=list(NAMES.values())))
            for old, new in NAMES.items():
                session.execute(update(Prediction).where(Prediction.model == old).values(model=new))
        build_report(sessions, served.context.store, "drawn", [])
        yield served
