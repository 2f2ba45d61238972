"""The statements that choose which source image or job is leased next. The state machine is `leases.py`."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    ScalarSelect,
    Select,
    String,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.orm import aliased

from gateway.database.sessions import database_now
from gateway.database.tables import Job, SourceImage

# Literals, not parameters: only then can the databases prove that the partial indexes apply.
_PENDING: ColumnElement[str] = literal_column("'pending'")
LEASED: ColumnElement[str] = literal_column("'leased'")
RUNNING: ColumnElement[str] = literal_column("'running'")

TOKEN, SECONDS = "new_token", "new_seconds"
_LEASE = {"lease_token": bindparam(TOKEN, type_=String), "lease_expires_at": database_now(bindparam(SECONDS))}


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
