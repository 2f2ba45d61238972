"""The page on which people set the status and the note of each finding. It works without scripts."""

from __future__ import annotations

from typing import get_args

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from gateway.api.dependencies import Gateway, JobId, Owner, Reviewer
from gateway.api.forms import refuse_other_types, validate
from gateway.context import Context
from gateway.database.sessions import reading
from gateway.database.tables import Report
from gateway.jobs import jobs
from gateway.reviews import finding_notes
from gateway.web.addresses import images_of_cell
from gateway.web.rendering import render
from shared.problems import Problem
from shared.schemas.finding_notes import FindingNoteRequest, FindingStatus

STATUSES: tuple[FindingStatus, ...] = get_args(FindingStatus)

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/jobs/{job}/notes")
def show_notes(job: JobId, gateway: Gateway, owner: Owner) -> HTMLResponse:
    """The findings of a job, each with a form for its status and note."""
    return _page(gateway, owner, job)


@router.post("/jobs/{job}/notes")
async def save_note(job: JobId, request: Request, gateway: Gateway, owner: Owner, author: Reviewer) -> Response:
    """Store the form's status and note, and redirect to their finding. A refusal is shown on the page."""
    refuse_other_types(request, "application/x-www-form-urlencoded")
    async with request.form(max_fields=3) as form:
        fields = {name: str(form.get(name, "")) for name in ("finding", "status", "note")}
    try:
        await run_in_threadpool(_save, gateway, owner, author, job, fields)
    except Problem as problem:
        return await run_in_threadpool(_page, gateway, owner, job, problem)
    return RedirectResponse(f"/jobs/{job}/notes#{fields['finding']}", 303)


def _save(gateway: Context, owner: str, author: str, job: str, fields: dict[str, str]) -> None:
    text = fields["note"].replace("\r\n", "\n").strip()
    request = validate(FindingNoteRequest, {"status": fields["status"] or None, "note": text}, "the form")
    with gateway.sessions.begin() as session:
        finding_notes.record(session, owner, author, job, fields["finding"], request)


def _page(gateway: Context, owner: str, job: str, problem: Problem | None = None) -> HTMLResponse:
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        findings = finding_notes.listing(session, owner, job).findings
        report = session.get(Report, job)
        results = report.results.results if report is not None else []
    figures = {(entry.model, entry.method): entry for entry in results}
    return render(
        "notes.html",
        status=200 if problem is None else problem.status,
        job_id=job,
        job=row,
        findings=findings,
        statuses=STATUSES,
        problem=problem.detail if problem else "",
        images=lambda finding: images_of_cell(job, figures[finding.model, finding.method], finding.effect.cell),
    )
