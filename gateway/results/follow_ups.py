"""The results of jobs that render another job's findings again: with an unrelated editor, or at other doses."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.tables import Job, Report
from shared.schemas.results import JobResults


def load_follow_ups(session: Session, job: Job, field: Literal["confirms", "doses_of"]) -> list[JobResults]:
    """The results of the owner's jobs whose spec names this job in `field`, oldest first."""
    reports = select(Report).join(Job, Report.job_id == Job.id).where(Job.owner_id == job.owner_id)
    of_job = reports.where(Job.spec[field].as_string() == job.id, Job.deleted_at.is_(None))
    return [report.results for report in session.scalars(of_job.order_by(Job.created_at, Job.id))]
