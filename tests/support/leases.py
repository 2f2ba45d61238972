"""Taking leases, as a worker does."""

from __future__ import annotations

from gateway.database.sessions import Sessions
from gateway.database.tables import SourceImage
from gateway.queue.leases import (
    Lease,
    claim,
)

LEASE = 3_600.0  # no test takes as long, however busy the machine


def take(sessions: Sessions) -> Lease | None:
    with sessions.begin() as session:
        return claim(session, LEASE)


def take_one(sessions: Sessions) -> Lease:
    lease = take(sessions)
    assert lease is not None
    return lease


def row(sessions: Sessions, image_id: str) -> SourceImage:
    with sessions() as session:
        return session.get_one(SourceImage, image_id)
