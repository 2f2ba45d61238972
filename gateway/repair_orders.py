"""From a job's rows to a repair's order: what is trained on, what is judged, and that the two never meet.

Source images are split, never counterfactuals: these follow their source. Sources that share an image, or one equal to
it by digest, go to the same side (also by way of a counterfactual), and each class is split by itself, in an order that
seed and digests decide. So the same rows and the same request give the same split.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.limits import LEAST_SOURCES
from gateway.tables import Counterfactual, SourceImage
from shared.problems import InvalidInput
from shared.schemas.repairs import Example, Judged, RepairOrder, RepairRequest, StoredModel
from shared.seeds import derive_digest

VALUES_FOR_HOLDING_OUT = 3


class Original(NamedTuple):
    """A source image with its ground truth."""

    image: str
    label: str


class Made(NamedTuple):
    """An accepted counterfactual, or a null arm (then without changes), of a source image."""

    image: str
    source: str
    method: str
    null: bool
    factors: tuple[str, ...]
    values: tuple[str, ...]


def load(session: Session, job_id: str) -> tuple[list[Original], list[Made]]:
    """The job's labelled source images that are done, and what was accepted of them, in the order of positions."""
    image, row = SourceImage, Counterfactual
    done = (image.job_id == job_id, image.state == "done", image.ground_truth.is_not(None), image.digest.is_not(None))
    originals = [
        Original(str(digest), str(label))
        for digest, label in session.execute(
            select(image.digest, image.ground_truth).where(*done).order_by(image.position)
        )
    ]
    made = session.execute(
        select(row.image_digest, image.digest, row.method, row.arm, row.changes)
        .join(image, row.source_image_id == image.id)
        .where(*done, row.accepted, row.image_digest.is_not(None))
        .order_by(row.position, row.method, row.ordinal)
    )
    return originals, [
        Made(
            str(digest),
            str(source),
            method,
            arm == "null",
            tuple(str(change["factor"]) for change in changes),
            tuple(str(change["to_value"]) for change in changes if change["to_value"]),
        )
        for digest, source, method, arm, changes in made
    ]


def order_of(
    repair: str,
    job: str,
    request: RepairRequest,
    licence: str,
    upload: StoredModel | None,
    originals: Sequence[Original],
    made: Sequence[Made],
) -> RepairOrder:
    """The order for a job's rows. Raises InvalidInput where they are too few, or a parameter fits none of them."""
    labels = _labels(originals)
    made = [row for row in made if row.source in labels]
    edits = [row for row in made if not row.null]
    if not edits:
        raise InvalidInput(
            "the job has no accepted counterfactual of a labelled source image; there is nothing to train on. Send "
            "ground truth with the images, or look at what the checks refused: GET /jobs/{job}/results?verdict=rejected"
        )
    _refuse_unknown(request, edits)
    not_trained = _values_held_out(request, edits)
    held_out = split(labels, made, request.held_out, request.seed)
    trained = [row for row in edits if row.source not in held_out and _wanted(row, request, not_trained)]
    _refuse_few(labels, held_out, trained)
    known = {value for row in trained for value in row.values}
    return RepairOrder(
        repair=repair,
        job=job,
        task="classification",
        model=request.model,
        upload=upload,
        licence=licence,
        parameters=request.parameters,
        originals=[_example(source, source, labels) for source in sorted(labels.keys() - held_out)],
        counterfactuals=[_example(row.image, row.source, labels) for row in trained],
        null_arms=[
            _example(row.image, row.source, labels)
            for row in made
            if row.null and row.source not in held_out and _of_method(row, request)
        ],
        judged=[
            *(Judged(image=one, source=one, label=labels[one], set="originals") for one in sorted(held_out)),
            *(_judged(row, labels, known) for row in edits if row.source in held_out and _of_method(row, request)),
        ],
        values_not_trained_on=sorted({value for row in edits for value in row.values} - known),
    )


def split(labels: Mapping[str, str], made: Sequence[Made], share: float, seed: int) -> set[str]:
    """Digests of the source images that are held out, about `share` of each class.

    Whatever shares an image stays together, and so does what shares it with that.
    """
    groups = _groups(labels, made)
    of_class: defaultdict[str, list[list[str]]] = defaultdict(list)
    for group in groups:
        of_class[labels[group[0]]].append(group)
    held_out: set[str] = set()
    for members in of_class.values():
        members.sort(key=lambda group: derive_digest("held out", seed, group[0]))
        for group in members[: round(share * len(members))]:
            held_out.update(group)
    return held_out


def _groups(labels: Mapping[str, str], made: Sequence[Made]) -> list[list[str]]:
    """Sources that are connected by images they share, each group sorted."""
    parent: dict[str, str] = {}

    def root(digest: str) -> str:
        parent.setdefault(digest, digest)
        while parent[digest] != digest:
            parent[digest] = parent[parent[digest]]
            digest = parent[digest]
        return digest

    for row in made:
        parent[root(row.image)] = root(row.source)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for source in sorted(labels):
        groups[root(source)].append(source)
    return list(groups.values())


def _labels(originals: Sequence[Original]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for image, label in originals:
        if labels.setdefault(image, label) != label:
            raise InvalidInput(
                f"the same picture ({image[:12]}…) is labelled {labels[image]!r} and {label!r}; mend the ground truth"
            )
    return labels


def _values_held_out(request: RepairRequest, edits: Sequence[Made]) -> set[str]:
    """The request's, or the rarest value where there are enough: it costs the training least."""
    if request.hold_out_values is not None:
        return set(request.hold_out_values)
    counts = Counter(value for row in edits if _wanted(row, request, ()) for value in row.values)
    if len(counts) < VALUES_FOR_HOLDING_OUT:
        return set()
    return {min(counts, key=lambda value: (counts[value], value))}


def _of_method(row: Made, request: RepairRequest) -> bool:
    return not request.methods or row.method in request.methods


def _wanted(row: Made, request: RepairRequest, not_trained: Collection[str]) -> bool:
    return (
        _of_method(row, request)
        and (not request.factors or set(row.factors) <= set(request.factors))
        and (not request.values or set(row.values) <= set(request.values))
        and not set(row.values) & set(not_trained)
    )


def _example(image: str, source: str, labels: Mapping[str, str]) -> Example:
    return Example(image=image, source=source, label=labels[source])


def _judged(row: Made, labels: Mapping[str, str], known: Collection[str]) -> Judged:
    alone = len(row.factors) == 1 and len(row.values) == 1
    return Judged(
        image=row.image,
        source=row.source,
        label=labels[row.source],
        set="counterfactuals" if set(row.values) <= set(known) else "values not trained on",
        factor=row.factors[0] if alone else None,
        value=row.values[0] if alone else None,
    )


def _refuse_unknown(request: RepairRequest, edits: Sequence[Made]) -> None:
    there = {
        "methods": {row.method for row in edits},
        "factors": {factor for row in edits for factor in row.factors},
        "values": {value for row in edits for value in row.values},
    }
    asked = {
        "methods": (request.methods, "methods"),
        "factors": (request.factors, "factors"),
        "values": (request.values, "values"),
        "hold_out_values": (request.hold_out_values or [], "values"),
    }
    for name, (wanted, kind) in asked.items():
        if unknown := sorted(set(wanted) - there[kind]):
            raise InvalidInput(
                f"{name}: no accepted counterfactual of the job has {', '.join(unknown)}; there are "
                f"{', '.join(sorted(there[kind])) or 'none'}"
            )


def _refuse_few(labels: Mapping[str, str], held_out: Collection[str], trained: Sequence[Made]) -> None:
    with_edits = len({row.source for row in trained})
    if with_edits < LEAST_SOURCES:
        raise InvalidInput(
            f"the accepted counterfactuals to train on come from {with_edits} source images, and at least "
            f"{LEAST_SOURCES} are needed; run a job over more images, hold out less, or train on more values"
        )
    if len(held_out) < LEAST_SOURCES:
        raise InvalidInput(
            f"{len(held_out)} of {len(labels)} source images would be held out, and a judgement takes at least "
            f"{LEAST_SOURCES}; run a job over more images, or hold out more"
        )
