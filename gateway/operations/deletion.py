"""Deletion of jobs: a deleted job is hidden at once, and its rows go in short transactions beside other work.

Functions that find jobs skip those with `deleted_at`. The request that deletes a job removes rows for a moment, which
is enough for most; workers remove what is left. A deletion that was stopped goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions, database_now, reading
from gateway.database.tables import Event, Job, Repair, Report, SourceImage, Study, StudyRater

IMAGES_PER_TRANSACTION = 50  # with their counterfactuals and predictions: some 100 ms
EVENTS_PER_TRANSACTION = 2_000
REQUEST_SECONDS = 5.0


def mark_deleted(session: Session, job_id: str) -> None:
    """Hide a job from now on, with its report, its repairs and its studies. Cancel it first."""
    session.execute(delete(Report).where(Report.job_id == job_id))
    session.execute(delete(Repair).where(Repair.job_id == job_id))
    studies = select(Study.id).where(Study.job_id == job_id)
    session.execute(delete(StudyRater).where(StudyRater.study_id.in_(studies)))  # before their studies, as they lock
    session.execute(delete(Study).where(Study.job_id == job_id))
    marked = (
        update(Job).where(Job.id == job_id).values(deleted_at=database_now(), idempotency_key=None, report_due=False)
    )
    session.execute(marked.execution_options(synchronize_session=False))


def remove_rows(sessions: Sessions, pause: Callable[[float], bool]) -> None:
    """Remove the rows of deleted jobs, oldest deletion first, until none is left or `pause` says to stop.

    `pause` is called between transactions with the seconds that the last one took; returns whether to stop.
    """
    marked = select(Job.id).where(Job.deleted_at.is_not(None)).order_by(Job.deleted_at, Job.id)
    with reading(sessions) as session:
        jobs = session.scalars(marked).all()
    for job_id in jobs:
        if not _remove_job(sessions, job_id, pause):
            return


def remove_rows_briefly(sessions: Sessions) -> None:
    """Like `remove_rows`, but only as long as a request may take; workers do the rest."""
    until = time.monotonic() + REQUEST_SECONDS
    remove_rows(sessions, lambda _: time.monotonic() > until)


def _remove_job(sessions: Sessions, job_id: str, pause: Callable[[float], bool]) -> bool:
    """Whether to go on with the next job: this one is gone, or somebody else removes it."""
    for table, number, size in (
        (SourceImage, SourceImage.position, IMAGES_PER_TRANSACTION),
        (Event, Event.sequence, EVENTS_PER_TRANSACTION),
    ):
        with reading(sessions) as session:
            first, last = session.execute(
                select(func.min(number), func.max(number)).where(table.job_id == job_id)
            ).one()
        for start in range(first, last + 1, size) if first is not None else ():
            began = time.monotonic()
            with sessions.begin() as session:
                locked_job = select(Job.id).where(Job.id == job_id).with_for_update(skip_locked=True)
                if session.scalar(locked_job) is None:
                    return True
                portion = delete(table).where(table.job_id == job_id, number >= start, number < start + size)
                session.execute(portion.execution_options(synchronize_session=False))
            if pause(time.monotonic() - began):
                return False
    with sessions.begin() as session:
        session.execute(delete(Job).where(Job.id == job_id))
    return True
