"""The pages on which owners give feedback: reviews of counterfactuals, marks of own images, notes on findings.

The review page hides predictions and the verdict of the checks. The images that a finding rests on have their arm
beside them, and the verdict is on both: an arm that lost the class makes a finding as an invalid edit does. The
calibration sample is of edits alone, since its errors are those of edits. The page of own images hides scores and file
names, too. That of notes works without scripts.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from gateway.api.dependencies import Gateway, JobId, Owner, Reviewer
from gateway.api.forms import refuse_other_types, validate
from gateway.context import Context
from gateway.database.sessions import reading
from gateway.database.tables import Report
from gateway.feedback import calibration, marks, notes, reviews
from gateway.feedback.answers import Turn
from gateway.jobs import jobs
from gateway.results import counterfactuals
from gateway.web.rendering import images_of_cell, render
from shared.problems import Problem
from shared.schemas.finding_notes import FindingNoteRequest, FindingStatus
from shared.schemas.results import FAILURE_MODES

STATUSES: tuple[FindingStatus, ...] = get_args(FindingStatus)

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/jobs/{job}/review")
def show_review(
    job: JobId,
    gateway: Gateway,
    owner: Owner,
    reviewer: Reviewer,
    counterfactual: Annotated[str | None, Query(max_length=64)] = None,
    sample: Literal["calibration"] | None = None,
    method: Annotated[str | None, Query(max_length=50)] = None,
) -> HTMLResponse:
    """The named or the next counterfactual for this reviewer, with their earlier review.

    `sample=calibration`: the next of the calibration sample, of all methods or of `method`.
    """
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        if sample is None:
            turn: Turn[str] = reviews.next_up(session, row, reviewer)
        else:
            turn = calibration.next_turn(session, row, reviewer, method)
        id = counterfactual or turn.item
        view = counterfactuals.detail(session, owner, job, id) if id else None
        review = reviews.review_of(session, job, reviewer, id) if id else None
        of_finding = sample is None and id in reviews.first_to_review(session, job)
        open_samples = [] if sample else reviews.open_samples(session, job, reviewer)
    arm = (view.sham_image or view.null_image) if view and of_finding else None
    chosen = {name: value for name, value in (("sample", sample), ("method", method)) if value is not None}
    path = f"/jobs/{job}/review" + (f"?{urlencode(chosen)}" if chosen else "")
    return render(
        "review.html",
        job_id=job,
        job=row,
        turn=turn,
        view=view,
        arm=arm,
        of_finding=of_finding,
        open_samples=open_samples,
        review=review,
        failure_modes=FAILURE_MODES,
        sample=sample,
        path=path,
    )


@router.get("/jobs/{job}/review/own-images")
def show_own_images(
    job: JobId,
    gateway: Gateway,
    owner: Owner,
    reviewer: Reviewer,
    factor: Annotated[str, Query(max_length=20)] = "",
    value: Annotated[str, Query(max_length=300)] = "",
    image: Annotated[str | None, Query(max_length=64)] = None,
) -> HTMLResponse:
    """The named or the next source image for this reviewer, of all values with findings or of one."""
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        view = marks.listing(session, owner, job)
    chosen = (factor, value) if value else None
    path = f"/jobs/{job}/review/own-images"
    turn, mark = marks.next_mark(view, reviewer, chosen, image)
    addresses: dict[marks.Value | None, str] = {
        (group.factor, group.value): f"{path}?{urlencode({'factor': group.factor, 'value': group.value})}"
        for group in view.values
    }
    return render(
        "own_images.html",
        job_id=job,
        job=row,
        turn=turn,
        mark=mark,
        addresses=addresses,
        before=f"{path}?{urlencode(turn.before._asdict())}" if turn.before else "",
        following=addresses.get(chosen, path) if image is None else path,
    )


@router.get("/jobs/{job}/notes")
def show_notes(job: JobId, gateway: Gateway, owner: Owner) -> HTMLResponse:
    """The findings of a job, each with a form for its status and note."""
    return _notes_page(gateway, owner, job)


@router.post("/jobs/{job}/notes")
async def save_note(job: JobId, request: Request, gateway: Gateway, owner: Owner, author: Reviewer) -> Response:
    """Store the form's status and note, and redirect to their finding. A refusal is shown on the page."""
    refuse_other_types(request, "application/x-www-form-urlencoded")
    async with request.form(max_fields=3) as form:
        fields = {name: str(form.get(name, "")) for name in ("finding", "status", "note")}
    try:
        await run_in_threadpool(_save_note, gateway, owner, author, job, fields)
    except Problem as problem:
        return await run_in_threadpool(_notes_page, gateway, owner, job, problem)
    return RedirectResponse(f"/jobs/{job}/notes#{fields['finding']}", 303)


def _save_note(gateway: Context, owner: str, author: str, job: str, fields: dict[str, str]) -> None:
    text = fields["note"].replace("\r\n", "\n").strip()
    request = validate(FindingNoteRequest, {"status": fields["status"] or None, "note": text}, "the form")
    with gateway.sessions.begin() as session:
        notes.record(session, owner, author, job, fields["finding"], request)


def _notes_page(gateway: Context, owner: str, job: str, problem: Problem | None = None) -> HTMLResponse:
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        findings = notes.listing(session, owner, job).findings
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
