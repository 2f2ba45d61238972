"""Detection: the boxes of the objects in an image, scored by the recall of each class.

A box that is confident enough finds an object of its class from an IoU on; both limits are the job's (`BoxSpec`).
`predicted` is the class of the most confident box, or "nothing", `probability` its confidence. `detail` of a
prediction: `top`, the highest confidence by class; `boxes`, all boxes of the job's classes as rows of class number,
score, left, top, right, bottom; and `detected` (`shared.schemas.boxes.Detected`), what became of each object, None
without a truth.
Boxes of classes that the job does not have are not judged: nobody annotated them. What the
editor added, by the segmenter of the check `presence`, is ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from gateway.analysis.certainty import mean_overlap
from gateway.analysis.detection import DUPLICATE, HALLUCINATION, MOST_OF_CLASS, match
from gateway.database.columns import StoredSpec
from gateway.kinds.detection_figures import at_confidence, chosen_scores, figures, nearby
from gateway.kinds.detection_hallucinations import by_hallucinations, with_hallucinations
from gateway.kinds.detection_originals import BoxedOriginals
from gateway.kinds.detection_rows import NOTHING, BoxDetail, alike, boxes_of_rows, objects_of, recalls
from gateway.kinds.task_kind import TOP, Scored, TaskKind
from gateway.methods.checks import PRESENCE, ShapeService, find_added
from gateway.methods.counterfactual import MethodImage
from shared.schemas.base import ImagePayload, JsonObject
from shared.schemas.boxes import (
    COUNTED_OUTCOMES,
    BoxSpec,
    Detected,
    DetectedObject,
    DetectReply,
    ExtraBox,
    ObjectOutcome,
    PredictedBox,
    TrueBox,
)
from shared.service.endpoints import Services

OUTCOMES: tuple[ObjectOutcome, ...] = ("found", "mislocated", "misclassified", "missed", "ignored")
DEFAULTS = BoxSpec()

Answer = list[PredictedBox]
Truth = Sequence[TrueBox]  # an object that is not in an image any more, though in its source, has the outcome "gone"


def _answers(reply: DetectReply, classes: Sequence[str]) -> Iterator[Answer]:
    """The boxes of the job's classes, the most confident first, at most 100 of a class."""
    for boxes in reply.boxes:
        kept, number = [], Counter[str]()
        for box in sorted(boxes, key=lambda box: -box.score):
            number[box.label] += 1
            if box.label in classes and number[box.label] <= MOST_OF_CLASS:
                kept.append(box)
        yield kept


def _boxes_of(source: MethodImage) -> Truth | None:
    return source.boxes


def _confident(answer: Answer, *, rules: BoxSpec) -> Truth:
    return [TrueBox(box=box.box, label=box.label) for box in answer if rules.counts(box)]


def _without(truth: Truth, gone: frozenset[int]) -> Truth:
    return [DetectedObject(**dict(it), outcome="gone") if place in gone else it for place, it in enumerate(truth)]


def _with_added(truth: Truth, scored: Scored, source: ImagePayload, image: ImagePayload, ask: ShapeService) -> Truth:
    extras = Detected.model_validate(scored.detail["detected"]).extras
    added = find_added(ask, source, image, [extra for extra in extras if extra.why == "hallucination"])
    new = [TrueBox(box=extra.box, label=extra.label, ignore="difficult") for extra in added]
    return [*truth, *new] if new else truth


def _judge(answer: Answer, truth: Truth | None, classes: Sequence[str], *, rules: BoxSpec) -> Scored:
    confident = [box for box in answer if rules.counts(box)]
    highest = {box.label: box.score for box in reversed(answer)}
    detected = None if truth is None else _detected(confident, truth, classes, rules.iou)
    first = confident[0] if confident else None
    numbers = {name: place for place, name in enumerate(classes)}
    top = sorted(highest.items(), key=lambda item: -item[1])[:TOP]
    detail: JsonObject = {
        "top": [{"name": name, "probability": score} for name, score in top],
        "boxes": [[numbers[box.label], box.score, *box.box] for box in answer],
        "detected": None if detected is None else detected.model_dump(mode="json", exclude_none=True),
    }
    scores = {} if detected is None else _recalls_of(detected)
    return Scored(first.label if first else NOTHING, first.score if first else 0.0, scores, detail)


def _detected(confident: Answer, truth: Truth, classes: Sequence[str], iou: float) -> Detected:
    numbers = {name: place for place, name in enumerate(classes)}
    rows = [[numbers[box.label], box.score, *box.box] for box in confident]
    matching = match(objects_of(truth, numbers), boxes_of_rows(rows), iou)
    things = [
        thing
        if isinstance(thing, DetectedObject)
        else DetectedObject(**dict(thing), outcome=OUTCOMES[outcome], prediction=None if by < 0 else confident[by])
        for thing, outcome, by in zip(truth, matching.outcome.tolist(), matching.by.tolist(), strict=True)
    ]
    extras = [
        ExtraBox(**dict(box), why="duplicate" if fate == DUPLICATE else "hallucination")
        for box, fate in zip(confident, matching.fate.tolist(), strict=True)
        if fate in (DUPLICATE, HALLUCINATION)
    ]
    return Detected(objects=things, extras=extras)


def _recalls_of(detected: Detected) -> dict[str, float]:
    counted = [thing for thing in detected.objects if thing.outcome in COUNTED_OUTCOMES]
    return recalls((thing.label, thing.outcome == "found") for thing in counted)


def _changed(original: Scored, image: Scored) -> bool | None:
    """Whether it loses an object that it found on the original."""
    arms = (cast("dict[str, list[dict[str, str]]] | None", scored.detail["detected"]) for scored in (original, image))
    before, after = ([thing["outcome"] for thing in arm["objects"]] if arm else None for arm in arms)
    if before is None or after is None:
        return None
    return any(was == "found" != now != "gone" for was, now in zip(before, after, strict=False))


def _in_job(kind: TaskKind[Answer, Truth], spec: StoredSpec, model: str) -> TaskKind[Answer, Truth]:
    rules = spec.boxes or DEFAULTS
    rules = rules.model_copy(update={"scores": {**spec.chosen_scores.get(model, {}), **rules.scores}})
    return replace(
        kind,
        as_truth=partial(_confident, rules=rules),
        judge=partial(_judge, rules=rules),
        detail=partial(BoxDetail, rules=rules),
        originals=partial(BoxedOriginals, rules=rules),
        choose=partial(chosen_scores, rules=rules) if rules.choose_scores else None,
    )


DETECTION = TaskKind(
    name="detection",
    models="detectors",
    does="detects objects",
    truth="list of boxes",
    truths="boxes",
    announced=lambda spec: spec.boxes is not None,
    localised=True,
    checks=(PRESENCE,),
    metric="recall",
    right_or_wrong=False,
    level=mean_overlap,
    endpoint=Services.detect,
    answers=_answers,
    truth_of=_boxes_of,
    as_truth=partial(_confident, rules=DEFAULTS),
    judge=partial(_judge, rules=DEFAULTS),
    changed=_changed,
    detail=partial(BoxDetail, rules=DEFAULTS),
    originals=partial(BoxedOriginals, rules=DEFAULTS),
    figures=figures,
    at_confidence=at_confidence,
    nearby=nearby,
    other_score=by_hallucinations,
    with_other_cells=with_hallucinations,
    configured=_in_job,
    alike=alike,
    without=_without,
    with_added=_with_added,
    no_repair=(
        "detectors cannot be repaired here; export the job as coco, or as folders for YOLO, and train on its images"
    ),
    on_power=(
        " An image counts for each class of its boxes, with the share of these objects that is found. That varies less "
        "between images than accuracy where images have several objects, so smaller drops may be detectable."
    ),
)
