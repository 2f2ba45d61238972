"""The review page: source beside counterfactual. It hides predictions and the verdict of the checks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from gateway.api.dependencies import Gateway, JobId, Owner, Reviewer
from gateway.database.sessions import reading
from gateway.jobs import jobs
from gateway.results import counterfactuals
from gateway.reviews import reviews
from gateway.reviews.queue import next_up
from gateway.web.rendering import render

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/jobs/{job}/review")
def show_review(
    job: JobId,
    gateway: Gateway,
    owner: Owner,
    reviewer: Reviewer,
    counterfactual: Annotated[str | None, Query(max_length=64)] = None,
) -> HTMLResponse:
    """The named or the next counterfactual for this reviewer, with their earlier review."""
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        turn = next_up(session, row, reviewer)
        id = counterfactual or turn.counterfactual
        view = counterfactuals.detail(session, owner, job, id) if id else None
        review = reviews.review_of(session, reviewer, id) if id else None
    return render("review.html", job_id=job, job=row, turn=turn, view=view, review=review)
