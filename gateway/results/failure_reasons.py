"""Why source images of a job failed."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.database.tables import SourceImage
from shared.schemas.results import FailureReason

REASONS_SHOWN = 5


def failure_reasons(session: Session, job_id: str) -> list[FailureReason]:
    """The most frequent reasons, the most frequent one first."""
    count = func.count()
    rows = session.execute(
        select(SourceImage.failure, count)
        .where(SourceImage.job_id == job_id, SourceImage.state == "failed")
        .group_by(SourceImage.failure)
        .order_by(count.desc(), SourceImage.failure)
        .limit(REASONS_SHOWN)
    )
    return [FailureReason(reason=reason, count=number) for reason, number in rows]
