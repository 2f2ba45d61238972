"""The state machine of the work, in SQL: who works on which source image, and when a job is over.

    source image   pending ──claim──► leased ──finish──► done
                      ▲                  ├──fail───────► pending again, failed after `max_attempts` (its own errors)
                      │                  ├──release────► pending again after a delay (a service was in trouble)
                      │                  ├──lose───────► pending again, later each time, failed after `max_lost_leases`
                      ├──────sweep───────┴──(expired)──► pending again at once, counted like `lose`
                      └──retry_job── failed, cancelled   (the counts start again)
    job            running ──(no unfinished image)── claim_analysis, finish ──► done; its errors count like an image's
                   running ──cancel_job──► cancelled, and its unfinished images with it
                   done, failed, cancelled ──retry_job──► running
                   done, failed, cancelled ──predict_again──► running, and its images that are done to pending, for
                                                              predictions of models under test that were added

Every claim is one statement; every write after it is guarded by the lease's token, so a late or doubled worker
changes nothing. Leases run on the database's clock. The functions take a session and never commit.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    case,
    false,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.orm import Session

from gateway.database.events import add_event
from gateway.database.sessions import database_now
from gateway.database.table_base import utc_now
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
    """Prolong leases; returns the tokens that still hold (the others were swept, cancelled or deleted)."""
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
    """Say what is done now with the source image of a lease; nothing changes when it no longer holds."""
    session.execute(
        update(SourceImage)
        .where(SourceImage.id == lease.id, SourceImage.lease_token == lease.token)
        .values(stage=stage)
        .execution_options(synchronize_session=False)
    )


def finish(session: Session, lease: Lease) -> bool:
    """Mark the lease's row as done and give the lease up; False (and nothing changed) when it no longer holds.

    Call it first in the transaction that stores the results, and store nothing when it is False.
    """
    done: dict[str, Any] = {"state": "done", "failure": ""}
    if lease.table is Job:
        done["finished_at"] = utc_now()
    else:
        done["generated"] = True
    return _give_up(session, lease, done)


def fail(session: Session, lease: Lease, reason: str, max_attempts: int, delay: float = 1.0) -> bool:
    """Count a failure that the row itself caused: another attempt after `delay` seconds, or `failed` with the reason.

    False when the lease no longer holds.
    """
    return _count(session, lease, "attempts", reason, max_attempts, delay)


def release(session: Session, lease: Lease, reason: str, delay: float) -> bool:
    """Give the row back, without counting an attempt; it is claimable again after `delay` seconds.

    False when the lease no longer holds.
    """
    return _give_up(session, lease, _reopened(lease.table, reason, delay))


def lose(session: Session, lease: Lease, reason: str, max_lost_leases: int, delay: float) -> bool:
    """Count a failure of which nobody knows whose it was, like a worker that died over the row.

    Again after `delay` seconds, twice as long each time: all images of a job outlive a service that fails for hours,
    and one image that breaks its service is left out in the end. False when the lease no longer holds.
    """
    return _count(session, lease, "lost_leases", reason, max_lost_leases, delay, growing=True)


def sweep(session: Session, max_lost_leases: int) -> int:
    """Return rows whose lease has expired to the others, or fail those over which too many workers died.

    Returns the number of leases taken away.
    """
    taken = 0
    for table in (SourceImage, Job):
        final = table.lost_leases + 1 >= max_lost_leases
        reason = f"{max_lost_leases} workers stopped while they worked on it; it is left out"
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
    """Let every lease expire now: for whoever knows that no worker is alive. The next sweep counts them as lost."""
    for table in (SourceImage, Job):
        session.execute(
            update(table)
            .where(table.lease_token.is_not(None))
            .values(lease_expires_at=database_now(-1))
            .execution_options(synchronize_session=False)
        )


def cancel_job(session: Session, job_id: str) -> bool:
    """Cancel a running job and its unfinished images; what is done stays. False when it was not running.

    Images before the job, as every other transaction locks them: so none waits for another in a circle.
    """
    if session.scalar(select(Job.state).where(Job.id == job_id)) != "running":
        return False
    session.execute(
        update(SourceImage)
        .where(SourceImage.job_id == job_id, unfinished(SourceImage))
        .values(state="cancelled", lease_token=None, lease_expires_at=None, updated_at=utc_now())
        .execution_options(synchronize_session=False)
    )
    cancelled = session.scalar(
        update(Job)
        .where(Job.id == job_id, Job.state == "running")
        .values(state="cancelled", finished_at=utc_now(), lease_token=None, lease_expires_at=None)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    if cancelled is None:
        return False
    add_event(session, job_id, "job", {"state": "cancelled"})
    return True


def retry_job(session: Session, job_id: str) -> int | None:
    """Take up a job's failed and cancelled images again, as if for the first time; its report is made again at the end.

    Files that were no images stay failed. Returns the number of images, 0 when only the analysis is to be repeated;
    None, and nothing changed, when there is nothing to repeat. A worker that analyses the job now loses its lease.
    """
    images = session.scalars(
        update(SourceImage)
        .where(
            SourceImage.job_id == job_id,
            SourceImage.state.in_(["failed", "cancelled"]),
            SourceImage.digest.is_not(None),
        )
        .values(state="pending", updated_at=utc_now(), **_FRESH)
        .returning(SourceImage.id)
        .execution_options(synchronize_session=False)
    ).all()
    over = Job.state.in_(["failed", "cancelled"])
    if not _run_anew(session, job_id, or_(over, true() if images else false())):
        return None
    add_event(session, job_id, "job", {"state": "running", "retried": len(images)})
    return len(images)


def predict_again(session: Session, job_id: str) -> int | None:
    """Take up the images of a job that is over whose counterfactuals are there, for predictions that are not.

    Returns their number; None, and nothing changed, while the job runs. Images that failed or were cancelled before
    there were counterfactuals stay what they are. Images before the job, as in `cancel_job`.
    """
    if session.scalar(select(Job.state).where(Job.id == job_id)) == "running":
        return None
    images = session.scalars(
        update(SourceImage)
        .where(SourceImage.job_id == job_id, SourceImage.generated, SourceImage.lease_token.is_(None))
        .values(state="pending", updated_at=utc_now(), **_FRESH)
        .returning(SourceImage.id)
        .execution_options(synchronize_session=False)
    ).all()
    if not _run_anew(session, job_id, Job.state != RUNNING):
        return None
    add_event(session, job_id, "job", {"state": "running", "predicted_again": len(images)})
    return len(images)


def analyse_again(session: Session, job_id: str) -> bool:
    """Have a job that is done analysed anew; its images stay as they are. False, and nothing changed, otherwise."""
    if not _run_anew(session, job_id, Job.state == "done"):
        return False
    add_event(session, job_id, "job", {"state": "running", "analysed_again": True})
    return True


def _run_anew(session: Session, job_id: str, allowed: ColumnElement[bool]) -> bool:
    """Set a job running as if it had never been over, where that is allowed; whether it was."""
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
    """Open to everybody again after a delay. A running job shows no failure: it may yet succeed."""
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
        add_event(session, job_id, "image", {"state": "failed", "position": position, "failure": reason})
