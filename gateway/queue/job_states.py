"""Changes of a whole job by its owner: cancel, retry, add predictions, analyse again.

    job    running ──cancel_job──► cancelled, and its unfinished images with it; then `leases.claim_analysis` and
                                   `finish` for the report of the finished images; it stays cancelled
           done, failed, cancelled ──retry_job──► running, and its failed and cancelled images to pending
           done, failed, cancelled ──predict_again──► running, and its images that are done to pending, for predictions
                                                      of models under test that were added
           done ──analyse_again──► running

The functions take a session and never commit. A worker that loses its token by one of them can no longer write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from sqlalchemy import ColumnElement, and_, exists, false, or_, select, true, update
from sqlalchemy.orm import Session

from gateway.database.columns import SourceImageState
from gateway.database.events import add_event
from gateway.database.table_base import utc_now
from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.queue.leases import RUNNING, is_unfinished


class _FreshCounts(TypedDict):
    """Columns of a row whose failures are forgotten."""

    failure: str
    attempts: int
    lost_leases: int
    not_before: None


_FRESH: _FreshCounts = {"failure": "", "attempts": 0, "lost_leases": 0, "not_before": None}


def cancel_job(session: Session, job_id: str) -> bool:
    """Cancel a running job and its unfinished images; finished images stay, and a worker makes a report of them.

    Returns False when it was not running. Locks images before the job, as every other transaction does, so that no
    deadlock is possible.
    """
    if session.scalar(select(Job.state).where(Job.id == job_id)) != "running":
        return False
    images = session.scalars(
        update(SourceImage)
        .where(SourceImage.job_id == job_id, is_unfinished(SourceImage))
        .values(state="cancelled", lease_token=None, lease_expires_at=None, updated_at=utc_now())
        .returning(SourceImage.position)
        .execution_options(synchronize_session=False)
    ).all()
    cancelled = session.scalar(
        update(Job)
        .where(Job.id == job_id, Job.state == "running")
        .values(
            state="cancelled",
            finished_at=utc_now(),
            report_due=True,
            lease_token=None,
            lease_expires_at=None,
            **_FRESH,
        )
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    if cancelled is None:
        return False
    add_event(session, job_id, "job", {"state": "cancelled"}, {"cancelled": len(images)})
    return True


def retry_job(session: Session, job_id: str) -> int | None:
    """Retry a job's failed and cancelled images with fresh counts; the report is rebuilt at the end.

    Files that are not images stay failed. Returns the number of images, 0 when only the analysis is repeated, or None
    (and changes nothing) when there is nothing to retry. A worker that is analysing the job loses its lease.
    """
    reopened = _reopen(session, ("failed", "cancelled"), SourceImage.job_id == job_id, SourceImage.digest.is_not(None))
    images = sum(reopened.values())
    over = Job.state.in_(["failed", "cancelled"])
    if not _set_running(session, job_id, or_(over, true() if images else false())):
        return None
    add_event(session, job_id, "job", {"state": "running", "retried": images}, _negative(reopened))
    return images


def predict_again(session: Session, job_id: str) -> int | None:
    """Make the images of a finished job pending again, to add missing predictions for their counterfactuals.

    Returns their number, or None (and changes nothing) while the job runs. Images that failed or were cancelled before
    they had counterfactuals keep their state; those that did in a later round have some of earlier rounds. Locks images
    before the job, as `cancel_job` does.
    """
    if session.scalar(select(Job.state).where(Job.id == job_id)) == "running":
        return None
    rendered = exists().where(Counterfactual.source_image_id == SourceImage.id)
    session.execute(
        update(SourceImage)
        .where(SourceImage.job_id == job_id, SourceImage.state.in_(("failed", "cancelled")), rendered)
        .values(generated=True)
        .execution_options(synchronize_session=False)
    )
    generated = and_(SourceImage.job_id == job_id, SourceImage.generated)
    reopened = _reopen(session, ("done", "failed", "cancelled"), generated)
    images = sum(reopened.values())
    if not _set_running(session, job_id, Job.state != RUNNING):
        return None
    add_event(session, job_id, "job", {"state": "running", "predicted_again": images}, _negative(reopened))
    return images


def analyse_again(session: Session, job_id: str) -> bool:
    """Analyse a job that is done again; its images keep their state. Returns False if it is not done."""
    if not _set_running(session, job_id, Job.state == "done"):
        return False
    add_event(session, job_id, "job", {"state": "running", "analysed_again": True})
    return True


def reopen_for_round(session: Session, job_id: str, positions: Sequence[int]) -> int:
    """Make finished images of a running job pending again, for the next round of an adaptive job. Returns how many."""
    return len(
        session.scalars(
            update(SourceImage)
            .where(SourceImage.job_id == job_id, SourceImage.state == "done", SourceImage.position.in_(positions))
            .values(state="pending", generated=False, updated_at=utc_now(), **_FRESH)
            .returning(SourceImage.position)
            .execution_options(synchronize_session=False)
        ).all()
    )


def _reopen(session: Session, states: Sequence[SourceImageState], *which: ColumnElement[bool]) -> dict[str, int]:
    """Make source images in these states pending again, with fresh counts. Returns how many there were of each."""
    counts: dict[str, int] = {}
    for state in states:
        reopened = update(SourceImage).where(SourceImage.state == state, *which).returning(SourceImage.position)
        fresh = reopened.values(state="pending", updated_at=utc_now(), **_FRESH)
        counts[state] = len(session.scalars(fresh.execution_options(synchronize_session=False)).all())
    return counts


def _negative(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: -number for name, number in counts.items()}


def _set_running(session: Session, job_id: str, allowed: ColumnElement[bool]) -> bool:
    """Set a job running with fresh counts where `allowed` holds. Returns whether it did."""
    started = (
        update(Job)
        .where(Job.id == job_id, allowed)
        .values(state="running", finished_at=None, report_due=False, lease_token=None, lease_expires_at=None, **_FRESH)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return session.scalar(started) is not None
