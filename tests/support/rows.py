"""Rows that tests of the state machine start from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select

from gateway.database.sessions import Sessions
from gateway.database.tables import LOCAL_OWNER, Image, Job, Owner, SourceImage
from tests.support.job_counts import store_counts

_FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def add_job(sessions: Sessions, job_id: str, images: int, *, minute: int = 0, **columns: Any) -> None:
    """A running job of the local owner, created at `minute`, with images `JOB-0` … that are all pending."""
    with sessions.begin() as session:
        session.merge(Owner(id=LOCAL_OWNER, name="local"))
        session.merge(Image(digest="0" * 64, width=8, height=8, bytes=100))
        values = {"task_description": "classify", "methods": [], "profile": "tiny", **columns}
        session.add(Job(id=job_id, owner_id=LOCAL_OWNER, created_at=_FIRST + timedelta(minutes=minute), **values))
        session.flush()
        session.add_all(
            SourceImage(id=f"{job_id}-{position}", job_id=job_id, position=position, digest="0" * 64)
            for position in range(images)
        )
        store_counts(session, job_id)


def let_time_pass(sessions: Sessions, seconds: float) -> None:
    """Every lease as if `seconds` had passed since: its expiry is set back in the database."""
    with sessions.begin() as session:
        images = session.scalars(select(SourceImage).where(SourceImage.lease_token.is_not(None)).with_for_update())
        jobs = session.scalars(select(Job).where(Job.lease_token.is_not(None)).with_for_update())
        for row in (*images, *jobs):
            assert row.lease_expires_at is not None
            row.lease_expires_at -= timedelta(seconds=seconds)
