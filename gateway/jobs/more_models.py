"""More models under test for a job that is over: they see its images, and nothing is rendered again."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from gateway.context import Context
from gateway.database.sessions import reading
from gateway.database.tables import SourceImage
from gateway.jobs import jobs
from gateway.jobs.choices import chosen_models, kind_of, refuse_unknown_classes, refuse_unknown_truths
from gateway.models_under_test import models
from gateway.queue import job_states
from shared.problems import Conflict, InvalidInput
from shared.schemas.jobs import JobDetail

MAX_MODELS_OF_JOB = 20


def add_to_job(context: Context, owner: str, job_id: str, names: Sequence[str]) -> JobDetail:
    """Hold more models under test against the images of a job that is over; nothing is rendered again.

    Raises NotFound, InvalidInput for models or labels that do not fit, Conflict while the job runs.
    """
    chosen = chosen_models(names, models.all_models(context, owner))
    with context.sessions.begin() as session:
        job = jobs.find(session, owner, job_id)
        if again := [name for name in names if name in job.models]:
            raise InvalidInput(f"the job tests {again[0]!r} already; name others")
        if len(names) != len(set(names)):
            raise InvalidInput("`models` names a model more than once; name each once")
        if len(job.models) + len(names) > MAX_MODELS_OF_JOB:
            raise InvalidInput(f"a job tests at most {MAX_MODELS_OF_JOB} models, and this one tests {len(job.models)}")
        if kind_of(chosen, job.kind) != job.kind:
            raise InvalidInput(f"{chosen[0].name!r} does {chosen[0].kind}, and the job tests {job.kind}")
        if job.kind == "segmentation":
            refuse_unknown_classes(job.classes, chosen)
        used = select(SourceImage.ground_truth).where(SourceImage.job_id == job_id).distinct()
        labels = {label for label in session.scalars(used) if label is not None}
        refuse_unknown_truths(labels, chosen, "Add the model again with `classes`, your names of its outputs")
        if job_states.predict_again(session, job_id) is None:
            raise Conflict("the job is running; add models when it is done")
        job.models = [*job.models, *names]
        job.uploaded_models = {**job.uploaded_models, **jobs.digests_of(chosen)}
    context.wake()
    with reading(context.sessions) as session:
        return jobs.show(session, owner, job_id)
