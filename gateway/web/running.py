"""What the page of a running job shows as it goes on: how fast it works, and its newest counterfactuals."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

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
from shared.schemas.jobs import JobDetail
from shared.schemas.result_rows import CounterfactualView

LEAST_FINISHED = 3  # images; fewer give no useful rate
OF_THE_LAST = 20  # images
NEWEST_IMAGES = 6  # source images
NEWEST = 6  # counterfactuals

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the last images were finished, and how long the others take at this rate."""

    images_per_minute: float
    left: timedelta

    @property
    def words(self) -> str:
        """ "3.2 images a minute, about 14 min left"."""
        return (
            f"{self.images_per_minute:.{1 if self.images_per_minute < 10 else 0}f} images a minute, {_left(self.left)}"
        )


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


def pace_of(session: Session, job: JobDetail) -> Pace | None:
    """The pace of a running job; None before three images are finished, and when none is left."""
    images = job.progress.images
    if job.state != "running" or not images.waiting + images.in_progress:
        return None
    ended = select(SourceImage.updated_at).where(
        SourceImage.job_id == job.id, SourceImage.state.in_(["done", "failed"])
    )
    times = session.scalars(ended.order_by(SourceImage.updated_at.desc()).limit(OF_THE_LAST)).all()
    if len(times) < LEAST_FINISHED:
        return None
    minutes = max((datetime.now(UTC) - times[-1]).total_seconds() / 60, 1e-3)
    rate = (len(times) - 1) / minutes
    return Pace(rate, timedelta(minutes=(images.waiting + images.in_progress) / rate))


def _left(left: timedelta) -> str:
    minutes = round(left.total_seconds() / 60)
    if minutes < 1:
        return "less than a minute left"
    hours, rest = divmod(minutes, 60)
    return f"about {hours} h {rest} min left" if hours else f"about {minutes} min left"
