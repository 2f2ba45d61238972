"""Lists a job's findings, and stores people's status and note of each."""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.orm import Session

from gateway.database.sessions import upsert
from gateway.database.table_base import utc_now
from gateway.database.tables import NotedFinding, Report
from gateway.jobs import jobs
from gateway.results.finding_notes import findings_of, load_notes, with_notes
from shared.problems import NotFound
from shared.schemas.finding_notes import FindingNoteRequest
from shared.schemas.findings import FindingsListing, FindingView


def listing(session: Session, owner: str, job_id: str) -> FindingsListing:
    """The findings of the job's report with their current notes. Raises NotFound."""
    jobs.find(session, owner, job_id)
    report = session.get(Report, job_id)
    if report is None:
        return FindingsListing(findings=[])
    return FindingsListing(findings=findings_of(with_notes(report.results, load_notes(session, job_id))))


def record(
    session: Session, owner: str, author: str, job_id: str, finding: str, request: FindingNoteRequest
) -> FindingView:
    """Store a finding's status and note in place of earlier ones; remove them if both are empty. Raises NotFound."""
    view = _find(session, owner, job_id, finding)
    key = {"job_id": job_id, "finding": finding}
    if request.status is None and not request.note:
        session.execute(delete(NotedFinding).filter_by(**key))
    else:
        columns = {**request.model_dump(), "author": author, "noted_at": utc_now()}
        about = {"model": view.model, "method": view.method, **view.effect.cell.model_dump()}
        upsert(session, NotedFinding, key, columns, **about)
    return _find(session, owner, job_id, finding)


def _find(session: Session, owner: str, job_id: str, finding: str) -> FindingView:
    views = {view.id: view for view in listing(session, owner, job_id).findings}
    if finding not in views:
        raise NotFound(f"job {job_id} has no finding {finding[:64]!r}; GET /jobs/{job_id}/findings lists them")
    return views[finding]
