"""`/jobs/{job}/findings`: the findings of a job, each with its status and note, and the jobs that look into them."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.dependencies import Gateway, JobId, Owner, Reviewer, problems
from gateway.database.sessions import reading
from gateway.feedback import notes
from gateway.follow_ups.confirmation import confirm
from gateway.follow_ups.doses import start_doses
from shared.schemas.effects import DoseRequest
from shared.schemas.finding_notes import FindingNoteRequest
from shared.schemas.findings import FindingsListing, FindingView
from shared.schemas.jobs import JobDetail
from shared.schemas.reviews import ConfirmationJob, ConfirmationRequest

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


@router.post("/jobs/{job}/confirmation", status_code=202, responses=problems(s404="no such job", s409="no finding"))
def confirm_findings(job: JobId, request: ConfirmationRequest, gateway: Gateway, owner: Owner) -> ConfirmationJob:
    """Start a job that tests the findings of a job again, with an unrelated editor.

    `not_tested` of the reply names the findings that it leaves out, and why. When it is done, `POST /jobs/{job}/report`
    adds its verdicts to the findings.
    """
    return confirm(gateway, owner, job, request)


@router.post("/jobs/{job}/doses", status_code=202, responses=problems(s404="no such job", s409="no weakness"))
def dose_findings(job: JobId, request: DoseRequest, gateway: Gateway, owner: Owner) -> JobDetail:
    """Start a job that renders the edits of a job's weaknesses at half, full and stronger dose, and undone.

    When it is done, `POST /jobs/{job}/report` adds the dose curves to the findings.
    """
    return start_doses(gateway, owner, job, request)
