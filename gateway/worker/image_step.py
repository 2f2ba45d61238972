"""The work on one source image: load it, run the methods, call the models under test, apply.

Load and apply are one short transaction each; no session is open between them. The transaction that marks the image as
done also writes all results, guarded by the lease: either everything is written, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from gateway.jobs.designs import with_values
from gateway.jobs.task_description import task_description_of
from gateway.methods import METHODS, JobMethod
from gateway.methods.arms import renumbered
from gateway.methods.counterfactual import Change, MethodCounterfactual, MethodImage, TaskDescription
from gateway.model_services.recorded import ImageShelf, RecordedServices
from gateway.models_under_test.of_job import TestedModel, models_of
from gateway.queue import leases
from gateway.queue.leases import Lease
from gateway.results.stream import relation_of
from gateway.worker.classify_step import classifier_predictions
from gateway.worker.messages import ModelInput, requests
from gateway.worker.segment_step import segmenter_predictions
from shared.images import decode
from shared.schemas.base import ImagePayload, JsonObject
from shared.schemas.designs import ChosenValue
from shared.seeds import derive_id


@dataclass(frozen=True, slots=True)
class Segmentation:
    """The classes of a segmentation job, and the image's mask if it has one. A job without masks is metamorphic."""

    classes: tuple[str, ...]
    mask_digest: str | None
    metamorphic: bool


@dataclass(frozen=True, slots=True)
class ImageWork:
    """What the work on one source image reads from the database.

    `pixels` is width × height, `occurrence` the number of equal images before it in the job. `rendered` holds the ids
    and digests of its counterfactuals if they exist already; then `models` are those without predictions for them.
    `object_mask` is the digest of the mask of its object, which is not a ground truth.
    `values`, in a job of rounds: what the image gets in this round; `first_ordinal` counts its counterfactuals of
    earlier rounds, and `predicted` says that its original has predictions.
    """

    id: str
    job_id: str
    owner_id: str
    position: int
    digest: str
    pixels: int
    occurrence: int
    ground_truth: str | None
    task_description: TaskDescription
    methods: tuple[JobMethod, ...]
    models: tuple[TestedModel, ...]
    seed: int
    segmentation: Segmentation | None = None
    object_mask: str | None = None
    rendered: tuple[tuple[str, str], ...] | None = None
    values: tuple[ChosenValue, ...] | None = None
    first_ordinal: int = 0
    predicted: bool = False


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
        occurrence = session.scalar(
            select(func.count()).where(
                SourceImage.job_id == job.id,
                SourceImage.digest == image.digest,
                SourceImage.position < image.position,
            )
        )
        return ImageWork(
            id=image.id,
            job_id=job.id,
            owner_id=job.owner_id,
            position=image.position,
            digest=image.digest,
            pixels=session.scalar(select(Image.width * Image.height).where(Image.digest == image.digest)) or 0,
            occurrence=occurrence or 0,
            ground_truth=image.ground_truth,
            task_description=task_description_of(job),
            methods=tuple(job.methods),
            models=_models_to_call(session, job, image) if image.generated else models_of(session, job),
            seed=job.seed,
            segmentation=_segmentation(session, job, image),
            object_mask=image.object_digest,
            rendered=_rendered(session, image) if image.generated else None,
            **_round(session, job, image),
        )


def call(work: ImageWork, services: RecordedServices, shelf: ImageShelf, link: Callable[[str], str]) -> ImageResult:
    """Generate the counterfactuals, unless they exist already, and call the models under test.

    `link` gives a URL of an object. Raises what methods and services raise.
    """
    source = source_of(work, shelf)
    images = [ModelInput(None, work.digest)]
    if work.rendered is None:
        rows = _generate(work, source, services, shelf)
        images += [ModelInput(row["id"], row["image_digest"]) for row in rows if row["image_digest"] is not None]
    else:
        rows = []
        images += [ModelInput(name, digest) for name, digest in work.rendered]
    batches = list(requests(images, work.pixels))
    predictions = _predictions(work, source, batches, services, shelf, link)
    if work.predicted and work.rendered is None:
        predictions = [row for row in predictions if row["counterfactual_id"] is not None]
    services_used = sorted(services.used.items())
    return ImageResult(
        rows,
        predictions,
        [{"service": service, "revision": revision, "info": info} for (service, revision), info in services_used],
    )


def _predictions(
    work: ImageWork,
    source: MethodImage,
    batches: Sequence[Sequence[ModelInput]],
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> list[PredictionColumns]:
    if work.segmentation is None:
        return list(classifier_predictions(work.id, work.models, batches, work.ground_truth, services, shelf, link))
    mask = None if source.mask is None else decode(source.mask.png, "L")
    classes, metamorphic = work.segmentation.classes, work.segmentation.metamorphic
    return segmenter_predictions(work.id, work.models, classes, batches, mask, metamorphic, services, shelf, link)


def _generate(
    work: ImageWork,
    source: MethodImage,
    services: RecordedServices,
    shelf: ImageShelf,
) -> list[CounterfactualColumns]:
    """The rows of the counterfactuals, whose images are saved."""
    rows: list[CounterfactualColumns] = []
    for method in work.methods if work.values != () else ():
        run, steered = method.spec.function, method if work.values is None else with_values(method, work.values)
        for counterfactual in run(source, work.task_description, services, steered.parameters, work.seed):
            rows.append(row_of(work, method.name, renumbered(counterfactual, work.first_ordinal), shelf))
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


def source_of(work: ImageWork, shelf: ImageShelf) -> MethodImage:
    """The source image as methods see it."""
    # Equal images at two positions are two source images: their seeds differ. Positions do not enter the seed, so
    # a longer or reordered job reuses the recorded calls of an earlier one.
    payload = ImagePayload(png=shelf.load(work.digest))
    digest = work.segmentation.mask_digest if work.segmentation else None
    mask = None if digest is None else ImagePayload(png=shelf.load(digest))
    return MethodImage(
        f"{work.digest}/{work.occurrence}",
        payload,
        work.ground_truth,
        mask,
        object_mask=None if work.object_mask is None else ImagePayload(png=shelf.load(work.object_mask)),
        digest=work.digest,
        load=lambda background: ImagePayload(png=shelf.load(background)),
    )


def row_of(
    work: ImageWork, method: str, counterfactual: MethodCounterfactual, shelf: ImageShelf
) -> CounterfactualColumns:
    """A method's counterfactual as columns of `tables.Counterfactual`; keeps its images on the shelf."""
    edit, revision = counterfactual.edit, METHODS[method].revision
    changes = edit.changes if edit else ()
    only = changes[0] if len(changes) == 1 else None
    control = None if counterfactual.control is None else shelf.keep(counterfactual.control.png)
    place = (work.position, method, revision, counterfactual.ordinal, counterfactual.seed)
    return {
        "id": derive_id("counterfactual", work.owner_id, work.job_id, *place),
        "method": method,
        "ordinal": counterfactual.ordinal,
        "arm": counterfactual.arm,
        "null_ordinal": counterfactual.null_ordinal,
        "null_check": counterfactual.null_check,
        "sham_ordinal": counterfactual.sham_ordinal,
        "sham_check": counterfactual.sham_check,
        "seed": counterfactual.seed,
        "changes": [_stored(change) for change in changes],
        "factor": only.factor if only else None,
        "from_value": only.from_value if only else None,
        "to_value": only.to_value if only else None,
        "caption": counterfactual.caption,
        "new_caption": edit.new_caption if edit else "",
        "image_digest": shelf.keep(counterfactual.image.png) if counterfactual.image is not None else None,
        "control_digest": control,
        "accepted": counterfactual.verdict.accepted,
        "check": counterfactual.verdict.check,
        "reason": counterfactual.verdict.reason,
        "scores": counterfactual.scores,
        "lineage": _stored_lineage(counterfactual, control),
    }


def _stored_lineage(counterfactual: MethodCounterfactual, control: str | None) -> JsonObject:
    """The lineage with the caption, the cost and the digest of the control image."""
    stored: JsonObject = to_jsonable_python({**counterfactual.lineage, "evaluations": counterfactual.evaluations})
    if counterfactual.caption:
        stored["caption"] = counterfactual.caption
    if control is not None:
        stored["control"] = {"digest": control}
    return stored


def _stored(change: Change) -> StoredChange:
    return {
        "factor": change.factor,
        "from_phrase": change.from_phrase,
        "to_phrase": change.to_phrase,
        "from_value": change.from_value,
        "to_value": change.to_value,
    }


def _segmentation(session: Session, job: Job, image: SourceImage) -> Segmentation | None:
    if job.kind != "segmentation":
        return None
    return Segmentation(tuple(job.classes), image.mask_digest, relation_of(session, job.id) == "metamorphic")


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
    given = [values for plan in plans if (values := plan.values_of(image.position))]
    last = session.scalar(select(func.max(Counterfactual.ordinal)).where(Counterfactual.source_image_id == image.id))
    predicted = session.scalar(select(Prediction.id).where(Prediction.source_image_id == image.id).limit(1))
    return {
        "values": given[-1] if given else (),
        "first_ordinal": 0 if last is None else last + 1,
        "predicted": predicted is not None,
    }


def _rendered(session: Session, image: SourceImage) -> tuple[tuple[str, str], ...]:
    rendered = (
        select(Counterfactual.id, Counterfactual.image_digest)
        .where(Counterfactual.source_image_id == image.id, Counterfactual.image_digest.is_not(None))
        .order_by(Counterfactual.method, Counterfactual.ordinal)
    )
    return tuple((name, digest) for name, digest in session.execute(rendered) if digest is not None)


def _models_to_call(session: Session, job: Job, image: SourceImage) -> tuple[TestedModel, ...]:
    """The models of the job without predictions for the image."""
    predicted = set(session.scalars(select(Prediction.model).where(Prediction.source_image_id == image.id).distinct()))
    return tuple(model for model in models_of(session, job) if model.name not in predicted)
