"""Makes a repair's order from a job's rows: disjoint sets of images to train on and to evaluate with.

Source images are split, and their counterfactuals follow them. Source images that share an image by digest, a mask or a
group stay on one side, also if they share it through a counterfactual. Each class is split separately, in an order that
seed and digests determine; all images with masks are one class. The same rows and request give the same split.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import and_, exists, or_, select
from sqlalchemy.orm import Session, aliased

from gateway.analysis.limits import LEAST_SOURCES
from gateway.database.tables import Counterfactual, SourceImage
from gateway.results.pairing import is_arm_of
from shared.problems import InvalidInput
from shared.schemas.base import Kind
from shared.schemas.repairs import MOST_STEPS, Example, JudgedExample, RepairOrder, RepairRequest, StoredModel
from shared.seeds import derive_digest

VALUES_FOR_HOLDING_OUT = 3


class Original(NamedTuple):
    """A source image with its ground truth: a class, or (`label` empty) the digest of its mask; and its group."""

    image: str
    label: str
    mask: str | None = None
    group: str | None = None


class RenderedImage(NamedTuple):
    """An accepted counterfactual, or a null arm (then without changes), of a source image."""

    image: str
    source: str
    method: str
    null: bool
    factors: tuple[str, ...]
    values: tuple[str, ...]


def load(session: Session, job_id: str) -> tuple[list[Original], list[RenderedImage]]:
    """The job's finished source images with ground truth, and the images of pairs that count, by position.

    An image counts where both arms of its pair are accepted; sham arms are no examples.
    """
    image, row = SourceImage, Counterfactual
    has_truth = or_(image.ground_truth.is_not(None), image.mask_digest.is_not(None))
    done = (image.job_id == job_id, image.state == "done", image.digest.is_not(None), has_truth)
    truths = select(image.digest, image.ground_truth, image.mask_digest, image.group_name)
    originals = [
        Original(str(digest), label or "", mask, group)
        for digest, label, mask, group in session.execute(truths.where(*done).order_by(image.position))
    ]
    edit = aliased(row)
    null_arm = and_(row.arm == "null", exists().where(edit.job_id == job_id, edit.counted, is_arm_of(row, edit)))
    accepted = session.execute(
        select(row.image_digest, image.digest, row.method, row.arm, row.changes)
        .join(image, row.source_image_id == image.id)
        .where(*done, or_(and_(row.arm == "edit", row.counted), null_arm), row.image_digest.is_not(None))
        .order_by(row.position, row.method, row.ordinal)
    )
    return originals, [
        RenderedImage(
            str(digest),
            str(source),
            method,
            arm == "null",
            tuple(str(change["factor"]) for change in changes),
            tuple(str(change["to_value"]) for change in changes if change["to_value"]),
        )
        for digest, source, method, arm, changes in accepted
    ]


def order_of(
    repair: str,
    job: str,
    request: RepairRequest,
    licence: str,
    upload: StoredModel | None,
    originals: Sequence[Original],
    images: Sequence[RenderedImage],
    classes: Sequence[str] = (),
    kind: Kind = "classification",
) -> RepairOrder:
    """The order for a job's rows; `classes` are those of its masks, or of what else lies at places of its images.

    Raises InvalidInput for too few rows, and for a parameter that matches no row.
    """
    truths = _truths(originals)
    images = [row for row in images if row.source in truths]
    edits = _edits(images)
    _refuse_unknown(request, edits)
    held_out = split_sources(truths, images, request.held_out, request.seed)
    training, null_arms = _training_images(request, images, edits, held_out)
    _refuse_few(truths, held_out, training)
    values = {value for row in training for value in row.values}
    sources = sorted(truths.keys() - held_out)
    images_of_epoch = len(sources) + len(training)
    parameters = request.parameters.for_images(images_of_epoch)
    if parameters.steps > MOST_STEPS:
        raise InvalidInput(
            f"{parameters.epochs} epochs of {images_of_epoch:,} images are {parameters.steps:,} steps, and an "
            f"arm takes at most {MOST_STEPS:,}; give fewer `epochs`, or a larger `batch_size`"
        )
    return RepairOrder(
        repair=repair,
        job=job,
        kind=kind,
        classes=list(classes),
        model=request.model,
        upload=upload,
        licence=licence,
        parameters=parameters,
        originals=[_example(source, truths[source]) for source in sources],
        counterfactuals=[_example(row.image, truths[row.source]) for row in training],
        null_arms=[_example(row.image, truths[row.source]) for row in null_arms],
        judged=_judged_examples(truths, held_out, [row for row in edits if _of_method(row, request)], values),
        values_not_trained_on=sorted({value for row in edits for value in row.values} - values),
    )


def _training_images(
    request: RepairRequest, images: Sequence[RenderedImage], edits: Sequence[RenderedImage], held_out: Collection[str]
) -> tuple[list[RenderedImage], list[RenderedImage]]:
    """The edits and the null arms to train on: those that the request selects, of source images not held out."""
    values_held_out = _values_held_out(request, edits)
    training = [row for row in edits if row.source not in held_out and _is_selected(row, request, values_held_out)]
    null_arms = [row for row in images if row.null and row.source not in held_out and _of_method(row, request)]
    return training, null_arms


def _edits(images: Sequence[RenderedImage]) -> list[RenderedImage]:
    edits = [row for row in images if not row.null]
    if not edits:
        raise InvalidInput(
            "the job has no accepted counterfactual of a source image with ground truth; there is nothing to train on. "
            "Send ground truth with the images, or look at what the checks refused: "
            "GET /jobs/{job}/results?verdict=rejected"
        )
    return edits


def split_sources(truths: Mapping[str, Original], images: Sequence[RenderedImage], share: float, seed: int) -> set[str]:
    """Digests of the source images (`truths`, by digest) that are held out, about `share` of each class.

    Source images that share an image, a mask or a group, directly or through others, are on the same side.
    """
    groups = _groups(truths, images)
    of_class: defaultdict[str, list[list[str]]] = defaultdict(list)
    for group in groups:
        of_class[truths[group[0]].label].append(group)
    held_out: set[str] = set()
    for members in of_class.values():
        members.sort(key=lambda group: derive_digest("held out", seed, group[0]))
        for group in members[: round(share * len(members))]:
            held_out.update(group)
    return held_out


def _groups(truths: Mapping[str, Original], images: Sequence[RenderedImage]) -> list[list[str]]:
    """Sources that share images, masks or a group, directly or through others; each group sorted."""
    parent: dict[str, str] = {}

    def root(digest: str) -> str:
        parent.setdefault(digest, digest)
        while parent[digest] != digest:
            parent[digest] = parent[parent[digest]]
            digest = parent[digest]
        return digest

    for row in images:
        parent[root(row.image)] = root(row.source)
    for truth in truths.values():
        if truth.mask is not None:
            parent[root(truth.mask)] = root(truth.image)
        if truth.group is not None:
            parent[root(f"group {truth.group}")] = root(truth.image)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for source in sorted(truths):
        groups[root(source)].append(source)
    return list(groups.values())


def _truths(originals: Sequence[Original]) -> dict[str, Original]:
    truths: dict[str, Original] = {}
    for original in originals:
        first = truths.setdefault(original.image, original)
        if (first.label, first.mask) != (original.label, original.mask):
            fault = "has two masks" if original.mask else f"is labelled {first.label!r} and {original.label!r}"
            raise InvalidInput(f"the same picture ({original.image[:12]}…) {fault}; correct the ground truth")
    return truths


def _values_held_out(request: RepairRequest, edits: Sequence[RenderedImage]) -> set[str]:
    """The request's values, or the rarest of enough values, which costs the training least."""
    if request.hold_out_values is not None:
        return set(request.hold_out_values)
    counts = Counter(value for row in edits if _is_selected(row, request, ()) for value in row.values)
    if len(counts) < VALUES_FOR_HOLDING_OUT:
        return set()
    return {min(counts, key=lambda value: (counts[value], value))}


def _of_method(row: RenderedImage, request: RepairRequest) -> bool:
    return not request.methods or row.method in request.methods


def _is_selected(row: RenderedImage, request: RepairRequest, values_held_out: Collection[str]) -> bool:
    return (
        _of_method(row, request)
        and (not request.factors or set(row.factors) <= set(request.factors))
        and (not request.values or set(row.values) <= set(request.values))
        and not set(row.values) & set(values_held_out)
    )


def _example(image: str, truth: Original) -> Example:
    return Example(image=image, source=truth.image, label=truth.label, mask=truth.mask)


def _judged_examples(
    truths: Mapping[str, Original], held_out: Collection[str], edits: Sequence[RenderedImage], values: Collection[str]
) -> list[JudgedExample]:
    """The held-out source images and their counterfactuals; `values` are those trained on."""
    return [
        *(_judged_original(truths[digest]) for digest in sorted(held_out)),
        *(_judged_edit(row, truths[row.source], values) for row in edits if row.source in held_out),
    ]


def _judged_original(truth: Original) -> JudgedExample:
    return JudgedExample(
        image=truth.image,
        source=truth.image,
        label=truth.label,
        mask=truth.mask,
        set="originals",
        group=truth.group,
    )


def _judged_edit(row: RenderedImage, truth: Original, values: Collection[str]) -> JudgedExample:
    single = len(row.factors) == 1 and len(row.values) == 1
    return JudgedExample(
        image=row.image,
        source=truth.image,
        label=truth.label,
        mask=truth.mask,
        set="counterfactuals" if set(row.values) <= set(values) else "values not trained on",
        factor=row.factors[0] if single else None,
        value=row.values[0] if single else None,
        group=truth.group,
    )


def _refuse_unknown(request: RepairRequest, edits: Sequence[RenderedImage]) -> None:
    available = {
        "methods": {row.method for row in edits},
        "factors": {factor for row in edits for factor in row.factors},
        "values": {value for row in edits for value in row.values},
    }
    names_by_field = {
        "methods": (request.methods, "methods"),
        "factors": (request.factors, "factors"),
        "values": (request.values, "values"),
        "hold_out_values": (request.hold_out_values or [], "values"),
    }
    for field, (names, kind) in names_by_field.items():
        if unknown := sorted(set(names) - available[kind]):
            raise InvalidInput(
                f"{field}: no accepted counterfactual of the job has {', '.join(unknown)}; they have "
                f"{', '.join(sorted(available[kind])) or 'none'}"
            )


def _refuse_few(truths: Collection[str], held_out: Collection[str], training: Sequence[RenderedImage]) -> None:
    with_edits = len({row.source for row in training})
    if with_edits < LEAST_SOURCES:
        raise InvalidInput(
            f"the accepted counterfactuals to train on come from {with_edits} source images, and at least "
            f"{LEAST_SOURCES} are needed; run a job over more images, hold out less, or train on more values"
        )
    if len(held_out) < LEAST_SOURCES:
        raise InvalidInput(
            f"{len(held_out)} of {len(truths)} source images would be held out, and an evaluation needs at least "
            f"{LEAST_SOURCES}; run a job over more images, or hold out more"
        )
