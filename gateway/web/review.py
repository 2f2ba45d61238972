"""The review page: source beside counterfactual. It hides predictions and the verdict of the checks.

The images that a finding rests on have their arm beside them, and the verdict is on both: an arm that lost the class
makes a finding as an invalid edit does. The calibration sample is of edits alone, since its errors are those of edits.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from gateway.api.dependencies import Gateway, JobId, Owner, Reviewer
from gateway.database.sessions import reading
from gateway.jobs import jobs
from gateway.results import counterfactuals
from gateway.results.reviewed_edits import first_to_review
from gateway.reviews import reviews
from gateway.reviews.calibration import Turn, next_turn
from gateway.reviews.queue import NextUp, next_up
from gateway.web.rendering import render
from shared.schemas.review_results import FAILURE_MODES

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
            turn: NextUp | Turn = next_up(session, row, reviewer)
        else:
            turn = next_turn(session, row, reviewer, method)
        id = counterfactual or turn.counterfactual
        view = counterfactuals.detail(session, owner, job, id) if id else None
        review = reviews.review_of(session, reviewer, id) if id else None
        of_finding = sample is None and id in first_to_review(session, job)
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
        review=review,
        failure_modes=FAILURE_MODES,
        sample=sample,
        path=path,
    )
