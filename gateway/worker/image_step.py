"""The work on one source image: load it, let the methods make counterfactuals, ask the models under test, apply.

Loading and applying are one short transaction each; between them, no session is open. Everything is written by the one
transaction that also marks the image as done, guarded by the lease: all of it is there, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from gateway.database.events import add_event
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage
from gateway.jobs.task_description import task_of
from gateway.methods import METHODS
from gateway.methods.counterfactual import Counterfactual as Made
from gateway.methods.counterfactual import SourceImage as MethodImage
from gateway.methods.counterfactual import TaskDescription
from gateway.model_services.recorded import ImageShelf, RecordedServices
from gateway.models_under_test.of_job import Tested, tested
from gateway.queue import leases
from gateway.queue.leases import Lease
from gateway.results.stream import relation_of
from gateway.worker.segment_step import segmented
from shared.images import decode
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, MAX_MESSAGE_BYTES, ImagePayload
from shared.seeds import derive_id

TOP = 5
_MOST_PNG_BYTES = MAX_MESSAGE_BYTES * 5 // 7  # base64 makes 4 of 3, and a little is left for the rest of a message
_LINEAGE = TypeAdapter(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Segmentation:
    """What a segmentation job knows of an image: its mask, if it has one; without any in the job, it is metamorphic."""

    classes: tuple[str, ...]
    mask_digest: str | None
    metamorphic: bool


@dataclass(frozen=True, slots=True)
class ImageWork:
    """All that the work on one source image needs to know of its rows. `occurrence` counts equal images before it.

    `made`: ids and images of its counterfactuals where they are there; then `models` are those that have not seen them.
    """

    id: str
    job_id: str
    owner_id: str
    position: int
    digest: str
    occurrence: int
    ground_truth: str | None
    task: TaskDescription
    methods: tuple[tuple[str, Mapping[str, Any]], ...]
    models: tuple[Tested, ...]
    seed: int
    segmentation: Segmentation | None = None
    made: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a model under test says of one image (an original: `counterfactual_id` None); see `tables.Prediction`."""

    counterfactual_id: str | None
    model: str
    probabilities: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ImageResult:
    """What the work came to, as rows without the job's and the image's ids. `segmented` are segmenters' predictions."""

    counterfactuals: list[dict[str, Any]]
    opinions: list[Opinion]
    segmented: list[dict[str, Any]]


def load(sessions: Sessions, lease: Lease) -> ImageWork | None:
    """What the lease is about; None when the row has gone."""
    with reading(sessions) as session:
        found = session.execute(
            select(SourceImage, Job).join(Job, SourceImage.job_id == Job.id).where(SourceImage.id == lease.id)
        ).one_or_none()
        if found is None:
            return None
        image, job = found
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
            occurrence=occurrence or 0,
            ground_truth=image.ground_truth,
            task=task_of(job),
            methods=tuple((method["name"], method.get("parameters", {})) for method in job.methods),
            models=_unasked(session, job, image) if image.generated else tested(session, job),
            seed=job.seed,
            segmentation=_segmentation(session, job, image),
            made=_made(session, image) if image.generated else None,
        )


def call(work: ImageWork, services: RecordedServices, shelf: ImageShelf, link: Callable[[str], str]) -> ImageResult:
    """Make the counterfactuals, unless they are there, and ask the models under test.

    `link` gives a URL of an object. Raises what methods and services raise.
    """
    source = source_of(work, shelf)
    images: list[tuple[str | None, ImagePayload]] = [(None, source.image)]
    if work.made is None:
        rows = _make(work, source, services, shelf, images)
    else:
        rows = []
        images += [(name, ImagePayload(png=shelf.load(digest))) for name, digest in work.made]
    if work.segmentation is not None:
        return ImageResult(rows, [], _segmented(work, work.segmentation, source, images, services, shelf, link))
    opinions = [opinion for model in work.models for opinion in _opinions(model, images, services, link)]
    return ImageResult(rows, opinions, [])


def _segmented(
    work: ImageWork,
    how: Segmentation,
    source: MethodImage,
    images: Sequence[tuple[str | None, ImagePayload]],
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> list[dict[str, Any]]:
    mask = None if source.mask is None else decode(source.mask.png, "L")
    parts = list(_messages(images))
    return segmented(work.id, work.models, how.classes, parts, mask, how.metamorphic, services, shelf, link)


def _make(
    work: ImageWork,
    source: MethodImage,
    services: RecordedServices,
    shelf: ImageShelf,
    images: list[tuple[str | None, ImagePayload]],
) -> list[dict[str, Any]]:
    """The rows of the counterfactuals; `images` gets those that were rendered."""
    rows: list[dict[str, Any]] = []
    for name, chosen in work.methods:
        method = METHODS[name]
        parameters = method.parameters.model_validate(chosen)
        for made in method.function(source, work.task, services, parameters, work.seed):
            row = row_of(work, name, made, shelf)
            rows.append(row)
            if made.image is not None:
                images.append((row["id"], made.image))
    shelf.save({digest for row in rows for digest in (row["image_digest"], row["control_digest"]) if digest})
    return rows


def apply(session: Session, lease: Lease, work: ImageWork, result: ImageResult) -> bool:
    """Write the result and mark the image as done; False, and nothing written, when the lease no longer holds."""
    if not leases.finish(session, lease):
        return False
    common = {"job_id": work.job_id, "source_image_id": work.id}
    if result.counterfactuals:
        rows = [{**common, "position": work.position, **row} for row in result.counterfactuals]
        session.execute(insert(Counterfactual), rows)
    if result.opinions:
        session.execute(insert(Prediction), [{**common, **row} for row in _prediction_rows(work, result.opinions)])
    if result.segmented:
        session.execute(insert(Prediction), [{**common, **row} for row in result.segmented])
    edits = [row for row in result.counterfactuals if row["arm"] == "edit"]
    payload = {
        "state": "done",
        "position": work.position,
        "edits": len(edits),
        "accepted": sum(row["accepted"] for row in edits),
    }
    add_event(session, work.job_id, "image", payload)
    return True


def source_of(work: ImageWork, shelf: ImageShelf) -> MethodImage:
    """The source image as methods see it."""
    # Equal images at two positions are two source images: their seeds differ. The position itself stays out of it, so
    # that a longer or reordered job finds the calls of an earlier one.
    payload = ImagePayload(png=shelf.load(work.digest))
    digest = work.segmentation.mask_digest if work.segmentation else None
    mask = None if digest is None else ImagePayload(png=shelf.load(digest))
    return MethodImage(f"{work.digest}/{work.occurrence}", payload, work.ground_truth, mask)


def row_of(work: ImageWork, method: str, made: Made, shelf: ImageShelf) -> dict[str, Any]:
    """What a method made, as columns of `tables.Counterfactual`; its images are kept on the shelf."""
    edit, revision = made.edit, METHODS[method].revision
    changes = edit.changes if edit else ()
    only = changes[0] if len(changes) == 1 else None
    lineage = _LINEAGE.dump_python(dict(made.lineage), mode="json", context={"images": shelf})
    control = lineage.get("control")
    parts = ("counterfactual", work.owner_id, work.job_id, work.position, method, revision, made.ordinal, made.seed)
    return {
        "id": derive_id(*parts),
        "method": method,
        "ordinal": made.ordinal,
        "arm": made.arm,
        "null_ordinal": made.null_ordinal,
        "seed": made.seed,
        "changes": [asdict(change) for change in changes],
        "factor": only.factor if only else None,
        "from_value": only.from_value if only else None,
        "to_value": only.to_value if only else None,
        "caption": edit.caption if edit else str(made.lineage.get("caption", "")),
        "new_caption": edit.new_caption if edit else "",
        "image_digest": shelf.keep(made.image.png) if made.image is not None else None,
        "control_digest": control["digest"] if isinstance(control, dict) else None,
        "accepted": made.verdict.accepted,
        "check": made.verdict.check,
        "reason": made.verdict.reason,
        "scores": dict(made.scores),
        "lineage": lineage,
    }


def _segmentation(session: Session, job: Job, image: SourceImage) -> Segmentation | None:
    if job.kind != "segmentation":
        return None
    return Segmentation(tuple(job.classes), image.mask_digest, relation_of(session, job.id) == "metamorphic")


def _made(session: Session, image: SourceImage) -> tuple[tuple[str, str], ...]:
    rendered = (
        select(Counterfactual.id, Counterfactual.image_digest)
        .where(Counterfactual.source_image_id == image.id, Counterfactual.image_digest.is_not(None))
        .order_by(Counterfactual.method, Counterfactual.ordinal)
    )
    return tuple((name, digest) for name, digest in session.execute(rendered) if digest is not None)


def _unasked(session: Session, job: Job, image: SourceImage) -> tuple[Tested, ...]:
    asked = set(session.scalars(select(Prediction.model).where(Prediction.source_image_id == image.id).distinct()))
    return tuple(model for model in tested(session, job) if model.name not in asked)


def _opinions(
    model: Tested,
    images: Sequence[tuple[str | None, ImagePayload]],
    services: RecordedServices,
    link: Callable[[str], str],
) -> Iterator[Opinion]:
    for part in _messages(images):
        reply = services.predict(model.request([image for _, image in part], link))
        for (counterfactual_id, _), probabilities in zip(part, reply.probabilities, strict=True):
            yield Opinion(counterfactual_id, model.name, dict(zip(reply.classes, probabilities, strict=True)))


def _messages(
    images: Sequence[tuple[str | None, ImagePayload]],
) -> Iterator[list[tuple[str | None, ImagePayload]]]:
    """The images in parts that a message may hold, by number and by bytes (noise hardly compresses)."""
    part: list[tuple[str | None, ImagePayload]] = []
    size = 0
    for image in images:
        more = len(image[1].png)
        if part and (len(part) == MAX_IMAGES_PER_MESSAGE or size + more > _MOST_PNG_BYTES):
            yield part
            part, size = [], 0
        part.append(image)
        size += more
    if part:
        yield part


def _prediction_rows(work: ImageWork, opinions: Sequence[Opinion]) -> Iterator[dict[str, Any]]:
    said = {opinion.model: _best(opinion) for opinion in opinions if opinion.counterfactual_id is None}
    for opinion in opinions:
        ranked = sorted(opinion.probabilities.items(), key=lambda item: -item[1])
        true = opinion.probabilities.get(work.ground_truth) if work.ground_truth is not None else None
        edited = opinion.counterfactual_id is not None
        yield {
            "id": derive_id("prediction", opinion.counterfactual_id or work.id, opinion.model),
            "counterfactual_id": opinion.counterfactual_id,
            "model": opinion.model,
            "predicted": ranked[0][0],
            "probability": ranked[0][1],
            "ground_truth_probability": true,
            "rank": None if true is None else 1 + sum(value > true for value in opinion.probabilities.values()),
            "flipped": ranked[0][0] != said[opinion.model] if edited else None,
            "top": [{"class": name, "probability": value} for name, value in ranked[:TOP]],
        }


def _best(opinion: Opinion) -> str:
    return max(opinion.probabilities.items(), key=lambda item: item[1])[0]
