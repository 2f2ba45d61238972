"""The newest counterfactuals of a running job, for its page."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from gateway.api.dependencies import Gateway, JobId, Owner
from gateway.database.sessions import reading
from gateway.jobs import jobs
from gateway.results.newest import newest
from gateway.web.rendering import render
from shared.schemas.results import CounterfactualView

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/jobs/{job}/newest")
def show_newest(job: JobId, gateway: Gateway, owner: Owner) -> HTMLResponse:
    """The newest accepted counterfactuals of a job as a fragment of HTML. The job's page fetches it while it runs."""
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        views, models = newest(session, job), list(row.models)
    return render("_newest.html", job_id=job, views=views, models=models, pair_link=lambda view: _address(job, view))


def _address(job: str, view: CounterfactualView) -> str:
    return f"/jobs/{job}/pairs/{view.id}"
