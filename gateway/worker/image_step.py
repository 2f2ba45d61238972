"""The work on one source image: load it, run the methods, call the models under test, apply.

Load and apply are one short transaction each; no session is open between them. The transaction that marks the image as
done also writes all results, guarded by the lease: either everything is written, or nothing.

The row of a counterfactual that the work on a source image writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from pydantic_core import to_jsonable_python
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from gateway.database.columns import (
    CounterfactualColumns,
    PredictionColumns,
    ServiceColumns,
    StoredChange,
)
from gateway.database.counts import edit_counts, total
from gateway.database.events import add_event
from gateway.database.owner_tables import Image
from gateway.database.sessions import Sessions, insert_missing, reading
from gateway.database.table_base import utc_now
from gateway.database.tables import Counterfactual, Job, JobRound, JobService, Prediction, SourceImage
from gateway.jobs.designs import values_of, with_values
from gateway.jobs.task_description import task_description_of
from gateway.kinds import KINDS
from gateway.methods import JobMethod
from gateway.methods.arms import renumber
from gateway.methods.checks import lost_objects, where_the_source_is
from gateway.methods.counterfactual import Change, MethodCounterfactual, MethodImage, TaskDescription
from gateway.methods.people import changed_by
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.models_under_test.of_job import TestedModel, models_of
from gateway.queue import leases
from gateway.queue.leases import Lease
from gateway.results.stream import relation_of
from gateway.worker.image_work import (
    ImageWork,
    ModelInput,
    kept_answer,
    requests,
    source_of,
    true_boxes,
    true_questions,
    values_set,
)
from gateway.worker.predict_step import predictions
from shared.schemas.base import JsonObject
from shared.schemas.designs import ChosenValue
from shared.schemas.questions import ImageQuestion
from shared.seeds import derive_id


@dataclass(frozen=True, slots=True)
class ImageResult:
    """The rows to write: results, and the services that replied."""

    counterfactuals: list[CounterfactualColumns]
    predictions: list[PredictionColumns]
    services: list[ServiceColumns]


def load(sessions: Sessions, lease: Lease) -> ImageWork | None:
    """The work of a lease; None when the row is deleted."""
    with reading(sessions) as session:
        rows = session.execute(
            select(SourceImage, Job).join(Job, SourceImage.job_id == Job.id).where(SourceImage.id == lease.id)
        ).one_or_none()
        if rows is None:
            return None
        image, job = rows
        if image.digest is None:
            raise ValueError(f"source image {image.id} was never readable; its row should have been failed at intake")
        labelled = image.ground_truth is not None or image.mask_classes is not None
        questions = true_questions(image.questions)
        return ImageWork(
            id=image.id,
            job_id=job.id,
            owner_id=job.owner_id,
            position=image.position,
            digest=image.digest,
            pixels=session.scalar(select(Image.width * Image.height).where(Image.digest == image.digest)) or 0,
            occurrence=_count_equal_before(session, image),
            ground_truth=image.ground_truth,
            task_description=_about(task_description_of(job), questions),
            methods=tuple(job.methods),
            models=_models_to_call(session, job, image) if image.generated else models_of(session, job),
            seed=job.seed,
            kind=KINDS[job.kind].of_job(job.stored_spec),
            classes=tuple(job.classes),
            mask_digest=image.mask_digest,
            boxes=true_boxes(image.boxes),
            questions=questions,
            metamorphic=not labelled and relation_of(session, job.id) == "metamorphic",
            object_mask=image.object_digest,
            rendered=_list_rendered(session, image) if image.generated else None,
            **_round(session, job, image),
        )


def _about(task: TaskDescription, questions: Sequence[ImageQuestion] | None) -> TaskDescription:
    """The task description of an image that has questions: edits may not name what their answers name."""
    return task if questions is None else replace(task, classes=kept_answer(questions)[1])


def call(work: ImageWork, services: RecordedServices, shelf: ImageShelf, link: Callable[[str], str]) -> ImageResult:
    """Generate the counterfactuals, unless they exist already, and call the models under test.

    `link` gives a URL of an object. Raises what methods and services raise.
    """
    source = source_of(work, shelf)
    images = [ModelInput(None, work.digest)]
    if work.rendered is None:
        rows = _generate(work, source, services, shelf)
        images += [
            ModelInput(row["id"], row["image_digest"], lost_objects(row["scores"]), values_set(row["changes"]))
            for row in rows
            if row["image_digest"] is not None
        ]
    else:
        rows = []
        images += work.rendered
    batches = list(requests(images, work.pixels))
    rows_of_models = predictions(work, source, batches, services, shelf, link)
    if work.predicted and work.rendered is None:
        rows_of_models = [row for row in rows_of_models if row["counterfactual_id"] is not None]
    services_used = sorted(services.used.items())
    return ImageResult(
        rows,
        rows_of_models,
        [{"service": service, "revision": revision, "info": info} for (service, revision), info in services_used],
    )


def predict_original(
    work: ImageWork, services: RecordedServices, shelf: ImageShelf, link: Callable[[str], str]
) -> list[PredictionColumns]:
    """Rows of the models' predictions for the original alone."""
    return predictions(work, source_of(work, shelf), [[ModelInput(None, work.digest)]], services, shelf, link)


def _generate(
    work: ImageWork,
    source: MethodImage,
    services: RecordedServices,
    shelf: ImageShelf,
) -> list[CounterfactualColumns]:
    """The rows of the counterfactuals, whose images are saved."""
    rows: list[CounterfactualColumns] = []
    for method in work.methods if work.values != () else ():
        steered = with_values(method, work.values) if work.values and values_of(method) else method
        run = method.spec.function
        for counterfactual in run(source, work.task_description, services, steered.parameters, work.seed):
            rows.append(row_of(work, method, renumber(counterfactual, work.first_ordinal), shelf))
    shelf.save({digest for row in rows for digest in (row["image_digest"], row["control_digest"]) if digest})
    return rows


def apply(session: Session, lease: Lease, work: ImageWork, result: ImageResult) -> bool:
    """Write the result and mark the image as done. Returns False, and writes nothing, when the lease is lost."""
    if not leases.finish(session, lease):
        return False
    common = {"job_id": work.job_id, "source_image_id": work.id}
    if result.counterfactuals:
        rows = [{**common, "position": work.position, **row} for row in result.counterfactuals]
        session.execute(insert(Counterfactual), rows)
    if result.predictions:
        session.execute(insert(Prediction), [{**common, **row} for row in result.predictions])
    insert_missing(
        session, JobService, [{"job_id": work.job_id, "created_at": utc_now(), **row} for row in result.services]
    )
    edits = [row for row in result.counterfactuals if row["arm"] == "edit"]
    payload: JsonObject = {
        "state": "done",
        "position": work.position,
        "edits": len(edits),
        "accepted": sum(row["accepted"] for row in edits),
    }
    outcomes = (
        edit_counts(row["method"], row["arm"], row["check"], int(row["image_digest"] is not None))
        for row in result.counterfactuals
    )
    add_event(session, work.job_id, "image", payload, total([Counter(done=1), *outcomes]))
    return True


def _count_equal_before(session: Session, image: SourceImage) -> int:
    """The number of equal images at earlier positions of the job."""
    row = SourceImage
    equal = (row.job_id == image.job_id, row.digest == image.digest, row.position < image.position)
    return session.scalar(select(func.count()).where(*equal)) or 0


class _Round(TypedDict, total=False):
    """The part of `ImageWork` that rounds decide."""

    values: tuple[ChosenValue, ...]
    first_ordinal: int
    predicted: bool


def _round(session: Session, job: Job, image: SourceImage) -> _Round:
    """What an image gets in the last round of an adaptive job that includes it; empty in any other job.

    An image that failed gets no values in later rounds, so that round is the one to repeat.
    """
    plans = session.scalars(select(JobRound.plan).where(JobRound.job_id == job.id).order_by(JobRound.number)).all()
    if not plans:
        return {}
    values_by_method = [values for plan in plans if (values := plan.values_of(image.position))]
    last = session.scalar(select(func.max(Counterfactual.ordinal)).where(Counterfactual.source_image_id == image.id))
    predicted = session.scalar(select(Prediction.id).where(Prediction.source_image_id == image.id).limit(1))
    return {
        "values": values_by_method[-1] if values_by_method else (),
        "first_ordinal": 0 if last is None else last + 1,
        "predicted": predicted is not None,
    }


def _list_rendered(session: Session, image: SourceImage) -> tuple[ModelInput, ...]:
    rendered = (
        select(Counterfactual.id, Counterfactual.image_digest, Counterfactual.scores, Counterfactual.changes)
        .where(Counterfactual.source_image_id == image.id, Counterfactual.image_digest.is_not(None))
        .order_by(Counterfactual.method, Counterfactual.ordinal)
    )
    return tuple(
        ModelInput(name, digest, lost_objects(scores), values_set(changes))
        for name, digest, scores, changes in session.execute(rendered)
        if digest is not None
    )


def _models_to_call(session: Session, job: Job, image: SourceImage) -> tuple[TestedModel, ...]:
    """The models of the job without predictions for the image."""
    predicted = set(session.scalars(select(Prediction.model).where(Prediction.source_image_id == image.id).distinct()))
    return tuple(model for model in models_of(session, job) if model.name not in predicted)


def row_of(
    work: ImageWork, method: JobMethod, counterfactual: MethodCounterfactual, shelf: ImageShelf
) -> CounterfactualColumns:
    """A method's counterfactual as columns of `tables.Counterfactual`; keeps its images on the shelf."""
    edit = counterfactual.edit
    changes = edit.changes if edit else ()
    only = changes[0] if len(changes) == 1 else None
    control = None if counterfactual.control is None else shelf.keep(counterfactual.control.png)
    image = where_the_source_is(counterfactual, lambda: shelf.load(work.digest))
    place = (work.position, method.name, method.revision, counterfactual.ordinal, counterfactual.seed)
    return {
        "id": derive_id("counterfactual", work.owner_id, work.job_id, *place),
        "method": method.name,
        "ordinal": counterfactual.ordinal,
        "arm": counterfactual.arm,
        "null_ordinal": counterfactual.null_ordinal,
        "null_check": counterfactual.null_check,
        "sham_ordinal": counterfactual.sham_ordinal,
        "sham_check": counterfactual.sham_check,
        "seed": counterfactual.seed,
        "changes": [_stored_change(change) for change in changes],
        "factor": only.factor if only else None,
        "from_value": only.from_value if only else None,
        "to_value": only.to_value if only else None,
        "caption": counterfactual.caption,
        "new_caption": edit.new_caption if edit else "",
        "image_digest": None if image is None else shelf.keep(image.png),
        "control_digest": control,
        "accepted": counterfactual.verdict.accepted,
        "check": counterfactual.verdict.check,
        "reason": counterfactual.verdict.reason,
        "scores": counterfactual.scores,
        "lineage": _stored_lineage(counterfactual, control),
    }


def _stored_lineage(counterfactual: MethodCounterfactual, control: str | None) -> JsonObject:
    """The lineage with caption, cost, digest of the control image, repeated questions, and characteristics changed."""
    stored: JsonObject = to_jsonable_python({**counterfactual.lineage, "evaluations": counterfactual.evaluations})
    if repeats := sum(exchange.get("requests", 1) - 1 for exchange in counterfactual.lineage.get("exchanges", [])):
        stored["asked_again"] = repeats
    if counterfactual.edit and (people := changed_by(counterfactual.edit)):
        stored["people"] = ", ".join(people)
    if counterfactual.caption:
        stored["caption"] = counterfactual.caption
    if control is not None:
        stored["control"] = {"digest": control}
    return stored


def _stored_change(change: Change) -> StoredChange:
    return {
        "factor": change.factor,
        "from_phrase": change.from_phrase,
        "to_phrase": change.to_phrase,
        "from_value": change.from_value,
        "to_value": change.to_value,
    }
