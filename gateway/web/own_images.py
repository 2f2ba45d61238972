"""The page to mark own images: one source image and one question. It hides predictions, scores and file names."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from gateway.api.dependencies import Gateway, JobId, Owner, Reviewer
from gateway.database.sessions import reading
from gateway.jobs import jobs
from gateway.reviews.own_images import Value, listing, next_mark
from gateway.web.rendering import render

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


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
        view = listing(session, owner, job)
    chosen = Value(factor, value) if value else None
    path = f"/jobs/{job}/review/own-images"
    turn = next_mark(view, reviewer, chosen, image)
    addresses = [(group, f"{path}?{_query(Value(group.factor, group.value))}") for group in view.values]
    before = f"{path}?{_query(*turn.before)}" if turn.before else ""
    following = f"{path}?{_query(chosen)}" if chosen and image is None else path
    return render(
        "own_images.html", job_id=job, job=row, turn=turn, values=addresses, before=before, following=following
    )


def _query(value: Value, image: str | None = None) -> str:
    chosen = {"factor": value.factor, "value": value.name}
    return urlencode({**chosen, "image": image} if image else chosen)
