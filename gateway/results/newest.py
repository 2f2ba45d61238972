"""The newest counterfactuals of a job."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.tables import Counterfactual, SourceImage
from gateway.results.views import counterfactual_views
from shared.schemas.results import CounterfactualView

NEWEST_IMAGES = 6  # source images
NEWEST = 6  # counterfactuals


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
