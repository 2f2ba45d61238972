"""Adds models under test to a finished job. They predict its images; nothing is rendered again."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.context import Context
from gateway.database.sessions import reading
from gateway.database.tables import JobRound, SourceImage
from gateway.jobs import jobs
from gateway.jobs.model_choice import kind_of, models_by_name, refuse_unknown_classes, refuse_unknown_truths
from gateway.kinds import KINDS
from gateway.models_under_test import models
from gateway.queue import job_states
from shared.problems import Conflict, InvalidInput
from shared.schemas.designs import RoundPlan
from shared.schemas.jobs import JobDetail

MAX_MODELS_OF_JOB = 20


def add_to_job(context: Context, owner: str, job_id: str, names: Sequence[str]) -> JobDetail:
    """Test more models on the images of a finished job; nothing is rendered again.

    Raises NotFound, InvalidInput for models or labels that do not fit, Conflict while the job runs.
    """
    added = models_by_name(names, models.all_models(context, owner))
    with context.sessions.begin() as session:
        job = jobs.find(session, owner, job_id)
        if repeated := [name for name in names if name in job.models]:
            raise InvalidInput(f"the job tests {repeated[0]!r} already; name others")
        if len(names) != len(set(names)):
            raise InvalidInput("`models` names a model more than once; name each once")
        if len(job.models) + len(names) > MAX_MODELS_OF_JOB:
            raise InvalidInput(f"a job tests at most {MAX_MODELS_OF_JOB} models, and this one tests {len(job.models)}")
        if kind_of(added, job.kind) != job.kind:
            raise InvalidInput(f"{added[0].name!r} does {added[0].kind}, and the job tests {job.kind}")
        if KINDS[job.kind].localised:
            refuse_unknown_classes(job.classes, added)
        truths = select(SourceImage.ground_truth).where(SourceImage.job_id == job_id).distinct()
        labels = {label for label in session.scalars(truths) if label is not None}
        refuse_unknown_truths(labels, added, "Add the model again with `classes`, your names of its outputs")
        if job_states.predict_again(session, job_id) is None:
            raise Conflict("the job is running; add models when it is done")
        _end_rounds(session, job_id)
        job.models = [*job.models, *names]
        job.uploaded_models = {**job.uploaded_models, **jobs.digests_of(added)}
    context.wake()
    with reading(context.sessions) as session:
        return jobs.show(session, owner, job_id)


def _end_rounds(session: Session, job_id: str) -> None:
    """Plan nothing more for an adaptive job that was cancelled between its rounds, since nothing is rendered again."""
    last = session.scalar(select(JobRound).where(JobRound.job_id == job_id).order_by(JobRound.number.desc()).limit(1))
    if last is not None and last.plan.places:
        number = last.number + 1
        session.add(JobRound(job_id=job_id, number=number, plan=RoundPlan(number=number, places=[])))
