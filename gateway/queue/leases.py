"""Leases: who works on which source image or analysis, as a state machine in SQL.

    source image   pending ──claim──► leased ──finish──► done
                      ▲                  ├──fail───────► pending again, failed after `max_attempts` (its own errors)
                      │                  ├──release────► pending again after a delay (a service was in trouble)
                      │                  ├──record_lost► pending again, later each time, failed after `max_lost_leases`
                      └──────sweep───────┴──(expired)──► pending again at once, counted like `record_lost`
    job            running ──(no unfinished image)── claim_analysis, finish ──► done, or failed where no image
                              succeeded; its errors count like an image's

`job_states` has the changes that an owner makes to a whole job. A lease is taken by one statement, and its token guards
every later write, so a late or duplicate worker changes nothing. Leases run on the database's clock. The functions take
a session and never commit.

The statements that choose which source image or job is leased next. The state machine is `leases.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypedDict

from sqlalchemy import (
    ColumnElement,
    Executable,
    ScalarSelect,
    Select,
    String,
    and_,
    bindparam,
    case,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session, aliased

from gateway.database.columns import SourceImageState
from gateway.database.events import add_event
from gateway.database.sessions import UtcDateTime, database_now
from gateway.database.table_base import utc_now
from gateway.database.tables import Job, SourceImage
from shared.schemas.base import JsonObject
from shared.schemas.jobs import Stage

# Literals, not parameters: only then can the databases prove that the partial indexes apply.
_PENDING: ColumnElement[str] = literal_column("'pending'")
LEASED: ColumnElement[str] = literal_column("'leased'")
RUNNING: ColumnElement[str] = literal_column("'running'")

TOKEN, SECONDS = "new_token", "new_seconds"
_LEASE = {"lease_token": bindparam(TOKEN, type_=String), "lease_expires_at": database_now(bindparam(SECONDS))}
LeasedTable = type[Job] | type[SourceImage]

MAX_REASON = 2_000
MAX_DOUBLINGS = 6  # from 5 seconds to 5 minutes: with 20 lost leases more than an hour


class _LeasedColumns(TypedDict, total=False):
    """Columns of a leased row that change when its lease ends: plain values or SQL."""

    state: SourceImageState | ColumnElement[str]
    failure: str
    attempts: int
    lost_leases: int
    not_before: ColumnElement[datetime]
    report_due: ColumnElement[bool]
    finished_at: ColumnElement[datetime]
    updated_at: datetime
    generated: bool


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
    row = session.execute(claim_image_statement(), {TOKEN: token, SECONDS: seconds}).one_or_none()
    return None if row is None else Lease(SourceImage, row.id, row.job_id, token)


def claim_analysis(session: Session, seconds: float) -> Lease | None:
    """Lease a running job whose source images are all finished, for its analysis; None when there is none."""
    token = secrets.token_hex(16)
    row = session.execute(claim_analysis_statement(), {TOKEN: token, SECONDS: seconds}).one_or_none()
    return None if row is None else Lease(Job, row.id, row.id, token)


def work_waits(session: Session) -> bool:
    """Whether an image or an analysis could be claimed now."""
    return session.scalar(work_waiting()) is not None


def renew(session: Session, leases: Collection[Lease], seconds: float) -> set[str]:
    """Extend leases. Returns the tokens of those that still hold; the others were swept, cancelled or deleted."""
    live: set[str] = set()
    for table in (SourceImage, Job):
        tokens = [lease.token for lease in leases if lease.table is table]
        if tokens:
            live |= set(
                session.scalars(
                    update(table)
                    .where(table.lease_token.in_(tokens))
                    .values(lease_expires_at=database_now(seconds))
                    .returning(table.lease_token)
                    .execution_options(synchronize_session=False)
                )
            )
    return live


def live_tokens(session: Session, leases: Collection[Lease]) -> set[str]:
    """The tokens of those leases that still hold, as `renew` returns them; changes nothing."""
    live: set[str] = set()
    for table in (SourceImage, Job):
        tokens = [lease.token for lease in leases if lease.table is table]
        if tokens:
            rows = session.scalars(select(table.lease_token).where(table.lease_token.in_(tokens)))
            live |= {token for token in rows if token is not None}
    return live


def note_stage(session: Session, lease: Lease, stage: Stage) -> None:
    """Record the stage of a leased source image. Changes nothing when the lease no longer holds."""
    session.execute(
        update(SourceImage)
        .where(SourceImage.id == lease.id, SourceImage.lease_token == lease.token)
        .values(stage=stage)
        .execution_options(synchronize_session=False)
    )


def finish(session: Session, lease: Lease, failure: str = "") -> bool:
    """Mark the row as done and end the lease. Returns False, and changes nothing, when the lease no longer holds.

    Call it first in the transaction that stores the results, and store nothing when it returns False. `failure`, of an
    analysis: why the job has no results; the job is then failed. A cancelled job stays cancelled.
    """
    if lease.table is Job:
        return _end_lease(session, lease, _end(failure))
    return _end_lease(session, lease, {"state": "done", "failure": "", "generated": True})


def continue_job(session: Session, lease: Lease) -> bool:
    """End the lease of a job that goes on: it keeps running. Returns False when the lease no longer holds."""
    return _end_lease(session, lease, {})


def fail(session: Session, lease: Lease, reason: str, max_attempts: int, delay: float = 1.0) -> bool:
    """Record a failure that the row itself caused: retry after `delay` seconds, or `failed` with the reason.

    Returns False when the lease no longer holds.
    """
    return _count_failure(session, lease, "attempts", reason, max_attempts, delay)


def release(session: Session, lease: Lease, reason: str, delay: float) -> bool:
    """Return the row without counting an attempt; it can be leased again after `delay` seconds.

    Returns False when the lease no longer holds.
    """
    return _end_lease(session, lease, _delay(lease.table, reason, delay))


def record_lost(session: Session, lease: Lease, reason: str, max_lost_leases: int, delay: float) -> bool:
    """Record a failure of unknown cause, such as a worker that died while it worked on the row.

    The retry waits `delay` seconds, twice as long each time. So a job survives a service that fails for hours, and an
    image that breaks its service fails in the end. Returns False when the lease no longer holds.
    """
    return _count_failure(session, lease, "lost_leases", reason, max_lost_leases, delay, growing=True)


def sweep(session: Session, max_lost_leases: int) -> int:
    """Make rows with an expired lease pending again, or fail those with too many lost leases.

    Returns the number of expired leases.
    """
    expired = 0
    for table in (SourceImage, Job):
        final = table.lost_leases + 1 >= max_lost_leases
        reason = f"{max_lost_leases} workers stopped while processing it; it is skipped"
        ended, reopened = _fail(table, reason), _reopen(table)
        rows = session.execute(
            update(table)
            .where(table.lease_token.is_not(None), table.lease_expires_at < database_now())
            .values(
                lost_leases=table.lost_leases + 1,
                lease_token=None,
                lease_expires_at=None,
                **{
                    name: case((final, value), else_=reopened.get(name, getattr(table, name)))
                    for name, value in ended.items()
                },
            )
            .returning(table.id, table.job_id if table is SourceImage else table.id, table.state)
            .execution_options(synchronize_session=False)
        ).all()
        expired += len(rows)
        for row_id, job_id, state in rows:
            if state == "failed":
                _add_failure_event(session, table, row_id, job_id, reason)
    return expired


def correct_times(session: Session, seconds: float) -> None:
    """After the database's clock was set back: what would last until its earlier time lasts at most `seconds` now.

    Delays end. Live workers renew their leases, and those of dead ones expire after `seconds`.
    """
    for table in (SourceImage, Job):
        for column, value in ((table.not_before, None), (table.lease_expires_at, database_now(seconds))):
            session.execute(
                update(table)
                .where(column > database_now(seconds))
                .values({column: value})
                .execution_options(synchronize_session=False)
            )


def expire_leases(session: Session) -> None:
    """Expire every lease and delay now. Call it only when no worker is alive; the next sweep records lost leases."""
    correct_times(session, 0.0)
    for table in (SourceImage, Job):
        session.execute(
            update(table)
            .where(table.lease_token.is_not(None))
            .values(lease_expires_at=database_now(-1))
            .execution_options(synchronize_session=False)
        )


def _reopen(table: LeasedTable) -> _LeasedColumns:
    """Values of a row that can be leased again; a job keeps its state while it is leased."""
    return {} if table is Job else {"state": "pending"}


def _delay(table: LeasedTable, reason: str, delay: float) -> _LeasedColumns:
    """As `_reopen`, after a delay. A job shows no failure: its analysis may yet succeed."""
    values = _reopen(table)
    values["not_before"] = database_now(delay)
    if table is SourceImage:
        values["failure"] = reason
    return values


def _fail(table: LeasedTable, reason: str) -> _LeasedColumns:
    """Values of a row that has failed for good."""
    return _end(reason) if table is Job else {"state": "failed", "failure": reason}


def _end(failure: str) -> _LeasedColumns:
    """Values of a job whose analysis is over."""
    return {
        "state": case((Job.state == "cancelled", "cancelled"), else_="failed" if failure else "done"),
        "failure": failure,
        "report_due": false(),
        "finished_at": func.coalesce(Job.finished_at, literal(utc_now(), UtcDateTime())),
    }


def _end_lease(session: Session, lease: Lease, values: _LeasedColumns) -> bool:
    table = lease.table
    if table is SourceImage:
        values = {**values, "updated_at": utc_now()}
    row_id = session.scalar(
        update(table)
        .where(table.id == lease.id, table.lease_token == lease.token)
        .values(**values, lease_token=None, lease_expires_at=None)
        .returning(table.id)
        .execution_options(synchronize_session=False)
    )
    return row_id is not None


def _count_failure(
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
    counts: _LeasedColumns = {"attempts": count + 1} if counter == "attempts" else {"lost_leases": count + 1}
    delay *= 2 ** min(count, MAX_DOUBLINGS) if growing else 1
    reason = reason.replace("\0", "")[:MAX_REASON]
    outcome = _fail(lease.table, reason) if final else _delay(lease.table, reason, delay)
    ended = _end_lease(session, lease, {**counts, **outcome})
    if ended and final:
        _add_failure_event(session, lease.table, lease.id, lease.job_id, reason)
    return ended


def _add_failure_event(session: Session, table: LeasedTable, row_id: str, job_id: str, reason: str) -> None:
    if table is Job:
        if session.scalar(select(Job.state).where(Job.id == job_id)) == "failed":  # not one that was cancelled
            add_event(session, job_id, "job", {"state": "failed", "failure": reason})
    else:
        position = session.scalar(select(SourceImage.position).where(SourceImage.id == row_id))
        event: JsonObject = {"state": "failed", "position": position, "failure": reason}
        add_event(session, job_id, "image", event, {"failed": 1})


@cache
def claim_image_statement() -> Executable:
    """Lease one source image. Cached, since building it takes longer than running it. Binds `TOKEN` and `SECONDS`."""
    leased, candidate = aliased(SourceImage), aliased(SourceImage)
    live_leases = (
        select(func.count())
        .where(leased.job_id == Job.id, leased.state == LEASED, leased.lease_expires_at > database_now())
        .scalar_subquery()
    )
    job_id = (
        select(Job.id)
        .where(Job.state == RUNNING, _first_image(candidate, _claimable(candidate), Job).is_not(None))
        .order_by(live_leases, Job.created_at, Job.id)
        .limit(1)
        .scalar_subquery()
    )
    target = aliased(SourceImage)
    image_id = (
        select(target.id)
        .where(target.job_id == job_id, _claimable(target))
        .order_by(target.turn, target.position)
        .limit(1)
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    return (
        update(SourceImage)
        .where(SourceImage.id == image_id)
        .values(state="leased", stage=None, **_LEASE, not_before=None)
        .returning(SourceImage.id, SourceImage.job_id)
        .execution_options(synchronize_session=False)
    )


@cache
def claim_analysis_statement() -> Executable:
    """Lease one running or cancelled job for its analysis. Cached; binds `TOKEN` and `SECONDS`."""
    target, image = aliased(Job), aliased(SourceImage)
    job_id = (
        select(target.id)
        .where(
            or_(target.state == RUNNING, target.report_due),
            target.lease_token.is_(None),
            _due(target),
            _first_image(image, is_unfinished(image), target).is_(None),
        )
        .order_by(target.created_at, target.id)
        .limit(1)
        .with_for_update(skip_locked=True)
        .scalar_subquery()
    )
    return (
        update(Job)
        .where(Job.id == job_id)
        .values(**_LEASE, not_before=None)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )


def work_waiting() -> Select[str]:
    """Jobs that have an image or an analysis to lease now."""
    candidate, sibling = aliased(SourceImage), aliased(SourceImage)
    image = _first_image(candidate, _claimable(candidate), Job).is_not(None)
    analysis = and_(Job.lease_token.is_(None), _due(Job), _first_image(sibling, is_unfinished(sibling), Job).is_(None))
    waiting = or_(and_(Job.state == RUNNING, or_(image, analysis)), and_(Job.report_due, analysis))
    return select(Job.id).where(waiting).limit(1)


def _first_image(image: Any, condition: ColumnElement[bool], job: Any) -> ScalarSelect[str]:
    """The job's first source image that meets the condition, in the order of leasing; null when there is none.

    It replaces `exists`, which makes Postgres read all matching rows. The order is that of the partial index, so
    Postgres reads a few entries.
    """
    first = select(image.id).where(image.job_id == job.id, condition).order_by(image.turn, image.position).limit(1)
    return first.correlate(job).scalar_subquery()


def is_unfinished(image: Any) -> ColumnElement[bool]:
    """Whether a source image (the table or an alias of it) is pending or leased."""
    return image.state.in_([_PENDING, LEASED])  # type: ignore[no-any-return]


def _due(row: Any) -> ColumnElement[bool]:
    return or_(row.not_before.is_(None), row.not_before <= database_now())


def _claimable(image: Any) -> ColumnElement[bool]:
    # `is_unfinished` repeats the partial index's condition: SQLite uses the index only then.
    return and_(is_unfinished(image), image.state == _PENDING, _due(image))
