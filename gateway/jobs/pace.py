"""How fast a running job works, and how long it still takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.tables import SourceImage
from shared.schemas.jobs import JobDetail

LEAST_FINISHED = 3  # images; fewer give no useful rate
OF_THE_LAST = 20  # images


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
    hours, minutes = divmod(minutes, 60)
    return f"about {hours} h {minutes} min left" if hours else f"about {minutes} min left"
