"""`/jobs/{job}/findings`: the findings of a job, each with its status and note."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.dependencies import Gateway, JobId, Owner, Reviewer, problems
from gateway.database.sessions import reading
from gateway.feedback import notes
from shared.schemas.finding_notes import FindingNoteRequest
from shared.schemas.findings import FindingsListing, FindingView

router = APIRouter(tags=["findings"])


@router.get("/jobs/{job}/findings", responses=problems(s404="no such job"))
def list_findings(job: JobId, gateway: Gateway, owner: Owner) -> FindingsListing:
    """The findings of a job's report, each with its id, status and note. Empty until there is a report."""
    with reading(gateway.sessions) as session:
        return notes.listing(session, owner, job)


@router.put("/jobs/{job}/findings/{finding}", responses=problems(s404="no such finding"))
def note_finding(
    job: JobId, finding: str, note: FindingNoteRequest, gateway: Gateway, owner: Owner, author: Reviewer
) -> FindingView:
    """Set the status and the note of a finding. They replace earlier ones; without both, these are removed.

    Pages and results show them at once, the report after `POST /jobs/{job}/report`.
    """
    with gateway.sessions.begin() as session:
        return notes.record(session, owner, author, job, finding, note)
