"""Counters of jobs whose rows were written without the code that keeps the counters."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.orm import Session

from gateway.database.counts import count_rows
from gateway.database.tables import Job


def store_counts(session: Session, job_id: str) -> None:
    """Count a job's rows and store the counters in its row."""
    session.flush()
    session.execute(update(Job).where(Job.id == job_id).values(counts=dict(count_rows(session, job_id))))
