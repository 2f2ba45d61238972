"""The newest counterfactuals of a running job, for its page.

The newest counterfactuals of a job.
"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.api.dependencies import Gateway, JobId, Owner
from gateway.database.sessions import reading
from gateway.database.tables import Counterfactual, SourceImage
from gateway.jobs import jobs
from gateway.results.views import counterfactual_views
from gateway.web.rendering import render
from shared.schemas.results import CounterfactualView

NEWEST_IMAGES = 6  # source images
NEWEST = 6  # counterfactuals
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


def newest(session: Session, job_id: str) -> list[CounterfactualView]:
    """The accepted counterfactuals of the images that were finished last: the first of each image and method."""
    done = select(SourceImage.id).where(SourceImage.job_id == job_id, SourceImage.state == "done")
    sources = session.scalars(done.order_by(SourceImage.updated_at.desc()).limit(NEWEST_IMAGES)).all()
    c = Counterfactual
    accepted = select(c).where(c.source_image_id.in_(sources), c.arm == "edit", c.accepted.is_(True))
    rows = session.scalars(accepted.order_by(c.ordinal, c.id)).all()
    firsts: dict[tuple[str, str], Counterfactual] = {}
    for row in rows:
        firsts.setdefault((row.source_image_id, row.method), row)
    chosen = [row for source in sources for (of, _), row in firsts.items() if of == source]
    return counterfactual_views(session, chosen[:NEWEST])
