"""A job's progress: its source images by state and stage, and its edits by fate. Answered by indexes."""

from __future__ import annotations

from typing import get_args

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.database.tables import Counterfactual, Job, SourceImage
from shared.schemas.jobs import FunnelView, ImageCounts, Progress, Stage, StageCounts


def progress(session: Session, job: Job) -> Progress:
    """Source images by state, those in progress by stage, and the funnel of each method."""
    job_id = job.id
    rows = session.execute(
        select(SourceImage.state, func.count()).where(SourceImage.job_id == job_id).group_by(SourceImage.state)
    )
    states = {str(state): int(count) for state, count in rows}
    counts = ImageCounts(
        waiting=states.get("pending", 0),
        in_progress=states.get("leased", 0),
        done=states.get("done", 0),
        failed=states.get("failed", 0),
        cancelled=states.get("cancelled", 0),
    )
    finished = counts.done + counts.failed + counts.cancelled
    stages = _stages(session, job_id)
    furthest = next((name for name in reversed(get_args(Stage)) if getattr(stages, name)), None)
    unfinished = counts.waiting + counts.in_progress
    return Progress(
        images=counts,
        fraction=finished / max(1, sum(states.values())),
        stage=None if job.state != "running" else furthest or ("waiting" if unfinished else "analysing"),
        stages=stages,
        funnel=_funnels(session, job_id),
        held_up=_held_up(session, job_id),
    )


def _stages(session: Session, job_id: str) -> StageCounts:
    # Only leased rows are read: as many as the workers hold, whatever the size of the job.
    leased = select(SourceImage.stage, func.count()).where(SourceImage.job_id == job_id, SourceImage.state == "leased")
    rows = session.execute(leased.group_by(SourceImage.stage))
    return StageCounts.model_validate({stage or "starting": count for stage, count in rows})


def _held_up(session: Session, job_id: str) -> str:
    """Why the last source image to be released was released, unless others have finished since."""
    last = session.execute(
        select(SourceImage.state, SourceImage.failure)
        .where(SourceImage.job_id == job_id, SourceImage.state.in_(["pending", "done"]))
        .order_by(SourceImage.updated_at.desc(), SourceImage.position)
        .limit(1)
    ).one_or_none()
    return last.failure if last is not None and last.state == "pending" else ""


def _funnels(session: Session, job_id: str) -> list[FunnelView]:
    c = Counterfactual
    # Two counts, each answered by an index alone: the rows themselves are large.
    counted = select(c.method, c.arm, c.check, func.count()).where(c.job_id == job_id)
    rows = session.execute(counted.group_by(c.method, c.arm, c.check).order_by(c.method)).all()
    drawn = select(c.method, func.count()).where(c.job_id == job_id, c.arm == "edit", c.image_digest.is_not(None))
    rendered = {row[0]: row[1] for row in session.execute(drawn.group_by(c.method))}
    funnels = []
    for method in dict.fromkeys(row[0] for row in rows):
        edits = [row for row in rows if row[0] == method and row[1] == "edit"]
        funnels.append(
            FunnelView(
                method=method,
                proposed=sum(row[3] for row in edits),
                rendered=rendered.get(method, 0),
                accepted=sum(row[3] for row in edits if not row[2]),
                rejected={row[2]: row[3] for row in edits if row[2]},
                null_arms=sum(row[3] for row in rows if row[0] == method and row[1] == "null"),
            )
        )
    return funnels
