"""What a worker records on a row whose step was broken off."""

from __future__ import annotations

import threading

import pytest

from gateway.database.sessions import Sessions
from gateway.database.tables import SourceImage
from gateway.model_services.clients import BrokenOff
from gateway.queue.leases import claim
from gateway.settings import Settings
from gateway.worker.worker import Worker
from tests.support.databases import ON_SQLITE
from tests.support.rows import add_job


@ON_SQLITE
@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("error", [BrokenOff("the call was broken off"), RuntimeError("broken off")])
def test_a_worker_that_stops_counts_nothing_against_its_images(
    sessions: Sessions, stops: bool, error: Exception
) -> None:
    add_job(sessions, "job", 1)
    worker = Worker.__new__(Worker)  # without threads
    worker._settings, worker._sessions, worker._stopping = Settings(), sessions, threading.Event()
    if stops:
        worker._stopping.set()
    with sessions.begin() as session:
        lease = claim(session, 60)
    assert lease is not None
    worker._settle(lease, error)
    with sessions() as session:
        image = session.get_one(SourceImage, "job-0")
        assert (image.state, image.lease_token) == ("pending", None)
        assert (image.attempts + image.lost_leases == 0, image.failure == "") == (stops, stops)
