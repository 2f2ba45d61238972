"""Leases, the state machine of the work in SQL: who works on which source image, and when a job ends.

    source image   pending ──claim──► leased ──finish──► done
                      ▲                  ├──fail───────► pending again, failed after `max_attempts` (its own errors)
                      │                  ├──release────► pending again after a delay (a service was in trouble)
                      │                  ├──record_lost► pending again, later each time, failed after `max_lost_leases`
                      ├──────sweep───────┴──(expired)──► pending again at once, counted like `record_lost`
                      └──retry_job── failed, cancelled   (the counts start again)
    job            running ──(no unfinished image)── claim_analysis, finish ──► done; its errors count like an image's
                   running ──cancel_job──► cancelled, and its unfinished images with it
                   done, failed, cancelled ──retry_job──► running
                   done, failed, cancelled ──predict_again──► running, and its images that are done to pending, for
                                                              predictions of models under test that were added

A lease is taken by one statement, and its token guards every later write, so a late or duplicate worker changes
nothing. Leases run on the database's clock. The functions take a session and never commit.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    and_,
    case,
    false,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.orm import Session

from gateway.database.columns import JsonObject
from gateway.database.events import add_event
from gateway.database.sessions import database_now
from gateway.database.table_base import SourceImageState, utc_now
from gateway.database.tables import Job, SourceImage
from gateway.queue.lease_queries import (
    RUNNING,
    SECONDS,
    TOKEN,
    claiming_an_analysis,
    claiming_an_image,
    unfinished,
    work_waiting,
)
from shared.schemas.jobs import Stage

LeasedTable = type[Job] | type[SourceImage]

MAX_REASON = 2_000
MAX_DOUBLINGS = 6  # from 5 seconds to 5 minutes: with 20 lost leases more than an hour

_FRESH: dict[str, Any] = {"failure": "", "attempts": 0, "lost_leases": 0, "not_before": None}


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on one row until it expires. `token` guards every write made under it."""

    table: LeasedTable
    id: str
    job_id: str
    token: str


def claim(session: Session, seconds: float) -> Lease | None:
    """Lease the next source image, of the job with the fewest live leases; None when nothing is claimable now."""
    token = secrets.token_hex(16)
    row = session.execute(claiming_an_image(), {TOKEN: token, SECONDS: seconds}).one_or_none()
    return None if row is None else Lease(SourceImage, row.id, row.job_id, token)


def claim_analysis(session: Session, seconds: float) -> Lease | None:
    """Lease a running job whose source images are all finished, for its analysis; None when there is none."""
    token = secrets.token_hex(16)
    row = session.execute(claiming_an_analysis(), {TOKEN: token, SECONDS: seconds}).one_or_none()
    return None if row is None else Lease(Job, row.id, row.id, token)


def work_waits(session: Session) -> bool:
    """Whether an image or an analysis could be claimed now."""
    return session.scalar(work_waiting()) is not None


def renew(session: Session, leases: Collection[Lease], seconds: float) -> set[str]:
    """Extend leases. Returns the tokens of those that still hold; the others were swept, cancelled or deleted."""
    held: set[str] = set()
    for table in (SourceImage, Job):
        tokens = [lease.token for lease in leases if lease.table is table]
        if tokens:
            held |= set(
                session.scalars(
                    update(table)
                    .where(table.lease_token.in_(tokens))
                    .values(lease_expires_at=database_now(seconds))
                    .returning(table.lease_token)
                    .execution_options(synchronize_session=False)
                )
            )
    return held


def note_stage(session: Session, lease: Lease, stage: Stage) -> None:
    """Record the stage of a leased source image. Changes nothing when the lease no longer holds."""
    session.execute(
        update(SourceImage)
        .where(SourceImage.id == lease.id, SourceImage.lease_token == lease.token)
        .values(stage=stage)
        .execution_options(synchronize_session=False)
    )


def finish(session: Session, lease: Lease) -> bool:
    """Mark the row as done and end the lease. Returns False, and changes nothing, when the lease no longer holds.

    Call it first in the transaction that stores the results, and store nothing when it returns False.
    """
    done: dict[str, Any] = {"state": "done", "failure": ""}
    if lease.table is Job:
        done["finished_at"] = utc_now()
    else:
        done["generated"] = True
    return _give_up(session, lease, done)


def fail(session: Session, lease: Lease, reason: str, max_attempts: int, delay: float = 1.0) -> bool:
    """Record a failure that the row itself caused: retry after `delay` seconds, or `failed` with the reason.

    Returns False when the lease no longer holds.
    """
    return _count(session, lease, "attempts", reason, max_attempts, delay)


def release(session: Session, lease: Lease, reason: str, delay: float) -> bool:
    """Return the row without counting an attempt; it can be leased again after `delay` seconds.

    Returns False when the lease no longer holds.
    """
    return _give_up(session, lease, _reopened(lease.table, reason, delay))


def record_lost(session: Session, lease: Lease, reason: str, max_lost_leases: int, delay: float) -> bool:
    """Record a failure of unknown cause, such as a worker that died while it worked on the row.

    The retry waits `delay` seconds, twice as long each time. So a job survives a service that fails for hours, and an
    image that breaks its service is left out in the end. Returns False when the lease no longer holds.
    """
    return _count(session, lease, "lost_leases", reason, max_lost_leases, delay, growing=True)


def sweep(session: Session, max_lost_leases: int) -> int:
    """Make rows with an expired lease pending again, or fail those with too many lost leases.

    Returns the number of expired leases.
    """
    taken = 0
    for table in (SourceImage, Job):
        final = table.lost_leases + 1 >= max_lost_leases
        reason = f"{max_lost_leases} workers stopped while processing it; it is skipped"
        rows = session.execute(
            update(table)
            .where(table.lease_token.is_not(None), table.lease_expires_at < database_now())
            .values(
                lost_leases=table.lost_leases + 1,
                state=case((final, "failed"), else_=_open_state(table)),
                failure=case((final, reason), else_=table.failure),
                lease_token=None,
                lease_expires_at=None,
            )
            .returning(table.id, table.job_id if table is SourceImage else table.id, table.state)
            .execution_options(synchronize_session=False)
        ).all()
        taken += len(rows)
        for row_id, job_id, state in rows:
            if state == "failed":
                _tell_failure(session, table, row_id, job_id, reason)
    return taken


def expire_leases(session: Session) -> None:
    """Expire every lease now. Call it only when no worker is alive; the next sweep records the leases as lost."""
    for table in (SourceImage, Job):
        session.execute(
            update(table)
            .where(table.lease_token.is_not(None))
            .values(lease_expires_at=database_now(-1))
            .execution_options(synchronize_session=False)
        )


def cancel_job(session: Session, job_id: str) -> bool:
    """Cancel a running job and its unfinished images; finished images stay. Returns False when it was not running.

    Locks images before the job, as every other transaction does, so that no deadlock is possible.
    """
    if session.scalar(select(Job.state).where(Job.id == job_id)) != "running":
        return False
    images = session.scalars(
        update(SourceImage)
        .where(SourceImage.job_id == job_id, unfinished(SourceImage))
        .values(state="cancelled", lease_token=None, lease_expires_at=None, updated_at=utc_now())
        .returning(SourceImage.position)
        .execution_options(synchronize_session=False)
    ).all()
    cancelled = session.scalar(
        update(Job)
        .where(Job.id == job_id, Job.state == "running")
        .values(state="cancelled", finished_at=utc_now(), lease_token=None, lease_expires_at=None)
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
    if not _run_anew(session, job_id, or_(over, true() if images else false())):
        return None
    add_event(session, job_id, "job", {"state": "running", "retried": images}, _negative(reopened))
    return images


def predict_again(session: Session, job_id: str) -> int | None:
    """Make the images of a finished job pending again, to add missing predictions for their counterfactuals.

    Returns their number, or None (and changes nothing) while the job runs. Images that failed or were cancelled before
    they had counterfactuals keep their state. Locks images before the job, as `cancel_job` does.
    """
    if session.scalar(select(Job.state).where(Job.id == job_id)) == "running":
        return None
    generated = and_(SourceImage.job_id == job_id, SourceImage.generated)
    reopened = _reopen(session, ("done", "failed", "cancelled"), generated)
    images = sum(reopened.values())
    if not _run_anew(session, job_id, Job.state != RUNNING):
        return None
    add_event(session, job_id, "job", {"state": "running", "predicted_again": images}, _negative(reopened))
    return images


def analyse_again(session: Session, job_id: str) -> bool:
    """Analyse a job that is done again; its images keep their state. Returns False if it is not done."""
    if not _run_anew(session, job_id, Job.state == "done"):
        return False
    add_event(session, job_id, "job", {"state": "running", "analysed_again": True})
    return True


def _reopen(session: Session, states: Sequence[SourceImageState], *which: ColumnElement[bool]) -> dict[str, int]:
    """Make source images in these states pending again, with fresh counts. Returns how many there were of each."""
    counts: dict[str, int] = {}
    for state in states:
        again = update(SourceImage).where(SourceImage.state == state, *which).returning(SourceImage.position)
        fresh = again.values(state="pending", updated_at=utc_now(), **_FRESH)
        counts[state] = len(session.scalars(fresh.execution_options(synchronize_session=False)).all())
    return counts


def _negative(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: -number for name, number in counts.items()}


def _run_anew(session: Session, job_id: str, allowed: ColumnElement[bool]) -> bool:
    """Set a job running with fresh counts where `allowed` holds. Returns whether it did."""
    again = (
        update(Job)
        .where(Job.id == job_id, allowed)
        .values(state="running", finished_at=None, lease_token=None, lease_expires_at=None, **_FRESH)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return session.scalar(again) is not None


def _open_state(table: LeasedTable) -> str:
    return "running" if table is Job else "pending"


def _reopened(table: LeasedTable, reason: str, delay: float) -> dict[str, Any]:
    """Values of a row that can be leased again after a delay. A running job shows no failure: it may yet succeed."""
    values = {"state": _open_state(table), "not_before": database_now(delay)}
    return values if table is Job else {**values, "failure": reason}


def _give_up(session: Session, lease: Lease, values: dict[str, Any]) -> bool:
    table = lease.table
    if table is SourceImage:
        values = {**values, "updated_at": utc_now()}
    held = session.scalar(
        update(table)
        .where(table.id == lease.id, table.lease_token == lease.token)
        .values(**values, lease_token=None, lease_expires_at=None)
        .returning(table.id)
        .execution_options(synchronize_session=False)
    )
    return held is not None


def _count(
    session: Session,
    lease: Lease,
    counter: Literal["attempts", "lost_leases"],
    reason: str,
    limit: int,
    delay: float,
    growing: bool = False,
) -> bool:
    count = session.scalar(select(getattr(lease.table, counter)).where(lease.table.lease_token == lease.token))
    if count is None:
        return False
    final = count + 1 >= limit
    delay *= 2 ** min(count, MAX_DOUBLINGS) if growing else 1
    reason = reason.replace("\0", "")[:MAX_REASON]
    outcome = {"state": "failed", "failure": reason} if final else _reopened(lease.table, reason, delay)
    held = _give_up(session, lease, {counter: count + 1, **outcome})
    if held and final:
        _tell_failure(session, lease.table, lease.id, lease.job_id, reason)
    return held


def _tell_failure(session: Session, table: LeasedTable, row_id: str, job_id: str, reason: str) -> None:
    if table is Job:
        session.execute(update(Job).where(Job.id == job_id).values(finished_at=utc_now()))
        add_event(session, job_id, "job", {"state": "failed", "failure": reason})
    else:
        position = session.scalar(select(SourceImage.position).where(SourceImage.id == row_id))
        event: JsonObject = {"state": "failed", "position": position, "failure": reason}
        add_event(session, job_id, "image", event, {"failed": 1})
