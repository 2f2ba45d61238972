"""Events of jobs (`GET /jobs/{id}/events`): numbered rows, written in the transaction of the change they report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from gateway.database.counts import sum_of
from gateway.database.tables import Event, Job
from shared.schemas.base import JsonObject


def add_event(
    session: Session, job_id: str, kind: str, payload: JsonObject, counts: Mapping[str, int] | None = None
) -> None:
    """Append an event to a job, and add `counts` to the job's counters (`gateway.database.counts`).

    Locks the job's row until the commit: call it last in the transaction.
    """
    session.flush()
    changes = {name: number for name, number in (counts or {}).items() if number}
    values = {Job.events: Job.events + 1} | ({Job.counts: sum_of(session, changes)} if changes else {})
    sequence = session.scalars(
        update(Job)
        .where(Job.id == job_id)
        .values(values)
        .returning(Job.events)
        .execution_options(synchronize_session=False)
    ).one()
    session.add(Event(job_id=job_id, sequence=sequence, kind=kind, payload=payload))
    session.flush()


def events_after(session: Session, job_id: str, sequence: int, limit: int) -> Sequence[Event]:
    """The events of a job that follow number `sequence` (0: all), oldest first."""
    following = select(Event).where(Event.job_id == job_id, Event.sequence > sequence)
    return session.scalars(following.order_by(Event.sequence).limit(limit)).all()
