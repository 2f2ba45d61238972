"""Jobs as their owners see them: create, find, list, show, cancel, retry, delete. Functions that take a session.

Nothing here commits, waits or calls a service: a request is one transaction, opened and committed at its edge.

A job's progress: source images by state and stage, and edits by outcome, from the counters in its row.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import get_args

from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from gateway.analysis.priority import turns
from gateway.database.columns import JobColumns, SourceImageColumns
from gateway.database.events import add_event, events_after
from gateway.database.owner_tables import Image
from gateway.database.pagination import SortKey, page_of
from gateway.database.sessions import insert_missing
from gateway.database.tables import OF_SUITES, Counterfactual, Job, JobBackground, JobRound, Report, SourceImage
from gateway.intake.sources import KeptMask, SourceFile, truths_of
from gateway.jobs.choices import Plan
from gateway.jobs.plans import PlannedJob, describe_plan
from gateway.jobs.sequences import PlannedImage
from gateway.operations.deletion import mark_deleted
from gateway.queue import job_states
from gateway.queue.leases import LEASED
from shared.problems import Conflict, NotFound
from shared.profiles.profile import CheckCalibration
from shared.schemas.base import JsonObject
from shared.schemas.designs import RoundPlan
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.jobs import (
    FunnelView,
    ImageCounts,
    ImageFailure,
    JobDetail,
    JobsPage,
    JobSpec,
    JobView,
    Progress,
    Stage,
    StageCounts,
)
from shared.schemas.plans import JobPlan
from shared.seeds import derive_digest, derive_id

MAX_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Order:
    """The input of a new job: the spec, its plan, the source images in their order, an adaptive job's first round.

    `test_set`: what is used of the files and where labels come from, in lines. `outside_domain`: what the report says
    of images that are not of the profile's domain.
    """

    spec: JobSpec
    plan: Plan
    profile: str
    sources: Sequence[SourceFile]
    idempotency_key: str | None = None
    screening: RoundPlan | None = None
    test_set: Sequence[str] = ()
    outside_domain: str = ""

    @property
    def hash(self) -> str:
        """Equal for equal requests: the spec as it was sent, and names, labels and bytes of the images."""
        parts = [self.spec.model_dump_json(exclude_unset=True)]
        for source in self.sources:
            parts += [source.name, repr(source.label), source.image.upload if source.image else source.failure]
            parts += [source.mask.digest] if source.mask else []
            parts += [f"group {source.group}"] if source.group else []
            parts += [] if source.boxes is None else [repr(source.boxes)]
            parts += [] if source.questions is None else [repr(source.questions)]
        return derive_digest(*parts).hex()


def create(session: Session, owner: str, order: Order) -> tuple[str, bool]:
    """Store a job with its source images and return its id.

    The second value is False when the same idempotency key has made the job before. Raises Conflict when the key was
    used for another request. The images' rows must be there already.
    """
    key = order.idempotency_key
    # The key determines the id, so repeating the request on another day gives the same ids.
    job_id = uuid.uuid4().hex if key is None else derive_id("job", owner, key)
    insert_missing(session, Job, [_job_row(job_id, owner, order)])
    if session.scalar(select(Job.deleted_at).where(Job.id == job_id)) is not None:
        raise Conflict("the job that this Idempotency-Key made is being deleted; try again in some minutes")
    job = find(session, owner, job_id)
    if job.request_hash != order.hash:
        raise Conflict("this Idempotency-Key was used for another request; use a new key")
    if job.events > 0:  # its first event is written below, in the transaction that made it
        return job_id, False
    turn = turns([source.label for source in order.sources])
    session.execute(
        insert(SourceImage),
        [_source_row(job_id, position, source, turn[position]) for position, source in enumerate(order.sources)],
    )
    digests = sorted({digest for method in order.plan.methods for digest in method.backgrounds})
    if digests:
        session.execute(insert(JobBackground), [{"job_id": job_id, "digest": digest} for digest in digests])
    if order.screening is not None:
        session.add(JobRound(job_id=job_id, number=0, plan=order.screening))
    counts = {
        "images": len(order.sources),
        "labelled": sum((source.label is not None) + _has_places(source) for source in order.sources),
        "failed": sum(source.image is None for source in order.sources),
    }
    started: JsonObject = {"state": "running", "images": len(order.sources), "test_set": list(order.test_set)}
    add_event(session, job_id, "job", started, counts)
    return job_id, True


def find(session: Session, owner: str, job_id: str) -> Job:
    """The owner's job or suite run. Raises NotFound, also for another owner's job and for the job of a suite itself."""
    mine = select(Job).where(Job.id == job_id, Job.owner_id == owner, Job.deleted_at.is_(None), Job.purpose != "suite")
    job = session.scalar(mine)
    if job is None:
        raise NotFound(f"there is no job {job_id!r}; GET /jobs lists yours")
    return job


def find_edit(session: Session, owner: str, job_id: str, counterfactual_id: str) -> Counterfactual:
    """An edit of the owner's job. Raises NotFound."""
    find(session, owner, job_id)
    row = session.get(Counterfactual, counterfactual_id)
    if row is None or row.job_id != job_id or row.arm != "edit":
        raise NotFound(f"job {job_id} has no counterfactual {counterfactual_id!r}")
    return row


def show(session: Session, owner: str, job_id: str) -> JobDetail:
    """A job with its progress."""
    job = find(session, owner, job_id)
    report = session.scalar(select(Report.job_id).where(Report.job_id == job_id))
    return JobDetail(
        **dict(view(job)),
        images=job.counts.get("images", 0),
        labelled=job.counts.get("labelled", 0),
        progress=progress(session, job),
        failures=failures(session, job_id) if job.counts.get("failed") else [],
        report=f"/jobs/{job_id}/report" if report and not job.report_due else None,
    )


def plan_of(
    session: Session, owner: str, job_id: str, working_side: int, calibrations: Sequence[CheckCalibration]
) -> JobPlan:
    """A job's plan, as a dry run would have shown it."""
    job = find(session, owner, job_id)
    s = SourceImage
    truths = select(s.ground_truth, s.mask_classes, s.file_name, s.group_name, Image.width, Image.height)
    images = [
        PlannedImage(
            name,
            classes or ([] if label is None else [label]),
            group,
            max(width, height),
            labelled=classes is not None or label is not None,
        )
        for label, classes, name, group, width, height in session.execute(
            truths.join(Image, s.digest == Image.digest).where(s.job_id == job_id)
        )
    ]
    planned = PlannedJob(
        task_description=job.task_description,
        kind=job.kind,
        methods=job.methods,
        models=job.models,
        classes=job.classes,
        profile=job.profile,
        seed=job.seed,
        design=job.stored_spec.design,
        chosen_by=job.stored_spec.chosen_by,
        budget=job.stored_spec.budget,
        test_set=describe_test_set(session, job_id),
        outside_domain=job.stored_spec.outside_domain_note,
        calibrations=calibrations,
    )
    return describe_plan(planned, images, working_side)


def describe_test_set(session: Session, job_id: str) -> list[str]:
    """The lines on the test set, which the job's first event has; none for older jobs and for suites' runs."""
    first = next(iter(events_after(session, job_id, 0, 1)), None)
    lines = first.payload.get("test_set") if first is not None else None
    return [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []


def listing(session: Session, owner: str, cursor: str | None, limit: int) -> JobsPage:
    """A page of the owner's jobs, newest first, without the runs of suites."""
    mine = select(Job).where(Job.owner_id == owner, Job.purpose.not_in(OF_SUITES), Job.deleted_at.is_(None))
    order: SortKey = {Job.created_at: datetime, Job.id: str}
    rows, following = page_of(session, mine, order, cursor, limit, descending=True)
    return JobsPage(jobs=[view(job) for job in rows], next=following)


def cancel(session: Session, owner: str, job_id: str) -> None:
    """Cancel a running job; finished images stay. Cancelling twice is fine. Raises Conflict if the job has ended."""
    job = find(session, owner, job_id)
    if not job_states.cancel_job(session, job_id):
        session.refresh(job)
        if job.state != "cancelled":
            raise Conflict(f"the job is {job.state}; only a running job can be cancelled")


def retry(session: Session, owner: str, job_id: str) -> None:
    """Retry the failed and cancelled images. Raises Conflict when there is nothing to retry."""
    find(session, owner, job_id)
    if job_states.retry_job(session, job_id) is None:
        raise Conflict("no image of this job failed or was cancelled, except unusable files; send those in a new job")


def rebuild_report(session: Session, owner: str, job_id: str) -> None:
    """Analyse a finished job again, with its current rows. Raises Conflict when it is not done."""
    job = find(session, owner, job_id)
    if not job_states.analyse_again(session, job_id):
        session.refresh(job)
        raise Conflict(f"the job is {job.state}; the report of a job can be rebuilt when the job is done")


def remove(session: Session, owner: str, job_id: str) -> str | None:
    """Delete a job, running or not; returns the object key of its report, to delete after the commit.

    The job is hidden from then on; `gateway.operations.deletion` removes its rows.
    """
    find(session, owner, job_id)
    job_states.cancel_job(session, job_id)
    key = session.scalar(select(Report.object_key).where(Report.job_id == job_id))
    mark_deleted(session, job_id)
    return key


def failures(session: Session, job_id: str) -> list[ImageFailure]:
    """The first failed source images with their reasons."""
    rows = session.scalars(
        select(SourceImage)
        .where(SourceImage.job_id == job_id, SourceImage.state == "failed")
        .order_by(SourceImage.position)
        .limit(MAX_FAILURES)
    )
    return [ImageFailure(position=row.position, name=row.file_name, reason=row.failure) for row in rows]


def view(job: Job) -> JobView:
    """A job as lists show it."""
    return JobView(
        id=job.id,
        state=job.state,
        failure=job.failure,
        task_description=job.task_description,
        kind=job.kind,
        methods=[method.choice() for method in job.methods],
        models=job.models,
        classes=job.classes,
        profile=job.profile,
        seed=job.seed,
        purpose=job.purpose,
        parent=job.parent_id,
        created_at=job.created_at,
        finished_at=job.finished_at,
    )


def digests_of(models: Sequence[ModelUnderTestInfo]) -> dict[str, str]:
    """The current digests of the uploaded models among these, by name."""
    return {model.name: model.revision for model in models if model.uploaded}


def _job_row(job_id: str, owner: str, order: Order) -> JobColumns:
    return {
        "id": job_id,
        "owner_id": owner,
        "task_description": order.spec.task_description,
        "kind": order.plan.kind,
        "classes": order.plan.classes or sorted({source.label for source in order.sources if source.label is not None}),
        "methods": order.plan.methods,
        "models": [model.name for model in order.plan.models],
        "uploaded_models": digests_of(order.plan.models),
        "profile": order.profile,
        "seed": order.spec.seed,
        "spec": order.spec.model_dump(mode="json")
        | {
            "outside_domain_note": order.outside_domain,
            "chosen_by": order.plan.proposal and order.plan.proposal.source,
        },
        "idempotency_key": order.idempotency_key,
        "request_hash": order.hash,
        "purpose": order.spec.purpose or "test",
        "parent_id": order.spec.parent,
    }


def _mask(source: SourceFile) -> KeptMask | None:
    """The mask that is ground truth."""
    return source.mask if source.image and source.mask and source.mask.classes else None


def _has_places(source: SourceFile) -> bool:
    """Whether the ground truth has several classes, or none: a mask, boxes, or questions with answers."""
    has_answers = any(question.answers for question in source.questions or ())
    return _mask(source) is not None or (source.image is not None and (source.boxes is not None or has_answers))


def _object_mask(source: SourceFile) -> KeptMask | None:
    return source.mask if source.image and source.mask and not source.mask.classes else None


def _source_row(job_id: str, position: int, source: SourceFile, turn: int) -> SourceImageColumns:
    mask, object_mask = _mask(source), _object_mask(source)
    return {
        "id": derive_id("source image", job_id, position),
        "job_id": job_id,
        "position": position,
        "turn": turn,
        "digest": source.image.digest if source.image else None,
        "file_name": source.name,
        "ground_truth": source.label,
        "group_name": source.group,
        "mask_digest": mask.digest if mask else None,
        "mask_classes": truths_of(source) if _has_places(source) else None,
        "boxes": None if source.boxes is None else [box.model_dump(exclude_none=True) for box in source.boxes],
        "questions": None
        if source.questions is None
        else [question.model_dump(mode="json", exclude_defaults=True) for question in source.questions],
        "object_digest": object_mask.digest if object_mask else None,
        "state": "pending" if source.image else "failed",
        "failure": source.failure,
    }


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
