"""A job's progress: source images by state and stage, and edits by outcome, from the counters in its row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.database.tables import Job, SourceImage
from gateway.queue.lease_queries import LEASED
from shared.schemas.jobs import FunnelView, ImageCounts, Progress, Stage, StageCounts


def progress(session: Session, job: Job) -> Progress:
    """Source images by state, those in progress by stage, and the funnel of each method.

    Besides the job's row it reads only the leased images and one more.
    """
    counts = job.counts
    stages = _stages(session, job.id) if job.state == "running" else StageCounts()
    in_progress = sum(stages.model_dump().values())
    ended = {name: counts.get(name, 0) for name in ("done", "failed", "cancelled")}
    images = counts.get("images", 0)
    finished = sum(ended.values())
    waiting = max(0, images - finished - in_progress)
    furthest = next((name for name in reversed(get_args(Stage)) if getattr(stages, name)), None)
    return Progress(
        images=ImageCounts(waiting=waiting, in_progress=in_progress, **ended),
        fraction=finished / max(1, images),
        stage=None if job.state != "running" else furthest or ("waiting" if waiting else "analysing"),
        stages=stages,
        funnel=_funnels(counts),
        held_up=_blocking_reason(session, job.id),
    )


def _stages(session: Session, job_id: str) -> StageCounts:
    leased = select(SourceImage.stage, func.count()).where(SourceImage.job_id == job_id, SourceImage.state == LEASED)
    rows = session.execute(leased.group_by(SourceImage.stage))
    return StageCounts.model_validate({stage or "starting": count for stage, count in rows})


def _blocking_reason(session: Session, job_id: str) -> str:
    """Why the last released source image was released; empty if another image has finished since."""
    last = session.execute(
        select(SourceImage.state, SourceImage.failure)
        .where(SourceImage.job_id == job_id, SourceImage.state.in_(["pending", "done"]))
        .order_by(SourceImage.updated_at.desc())  # nothing after it: many images may share the time of a retry
        .limit(1)
    ).one_or_none()
    return last.failure if last is not None and last.state == "pending" else ""


def _funnels(counts: Mapping[str, int]) -> list[FunnelView]:
    methods: dict[str, dict[str, int]] = {}
    for name, number in sorted(counts.items()):
        method, slash, fate = name.partition("/")
        if slash:
            methods.setdefault(method, {})[fate] = number
    return [
        FunnelView(
            method=method,
            proposed=fates.get("proposed", 0),
            rendered=fates.get("rendered", 0),
            accepted=fates.get("accepted", 0),
            rejected={
                fate.removeprefix("rejected/"): number for fate, number in fates.items() if fate.startswith("rejected/")
            },
            null_arms=fates.get("null", 0),
        )
        for method, fates in methods.items()
    ]
