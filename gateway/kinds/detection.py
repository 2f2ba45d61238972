"""Detection: the boxes of the objects in an image, scored by the recall of each class.

A box that is confident enough finds an object of its class from an IoU on; both limits are the job's (`BoxSpec`).
`predicted` is the class of the most confident box, or "nothing", `probability` its confidence. `detail` of a
prediction: `top`, the highest confidence by class; `boxes`, all boxes of the job's classes as rows of class number,
score, left, top, right, bottom; and `detected` (`shared.schemas.boxes.Detected`), what became of each object, None
without a truth.
Boxes of classes that the job does not have are not judged: nobody annotated them. An object that the check `presence`
does not see in an image any more counts neither there nor in the images that this one is compared with. What the
editor added, by the same segmenter, is ignored.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval, mean_overlap
from gateway.analysis.detection import (
    COUNTED,
    CROWD,
    DIFFICULT,
    DUPLICATE,
    FOUND,
    HALLUCINATION,
    IGNORED,
    MOST_OF_CLASS,
    BoxedPair,
    CountingLimits,
    MatchedObjects,
    Objects,
    Predicted,
    average_precision,
    best_scores,
    losing,
    match,
    precision_difference,
    sizes,
)
from gateway.analysis.effects import Floats, Integers, Scores, Units, differences
from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.original_boxes import MOST_COMPARED, JudgedBoxes, judge_boxes
from gateway.database.columns import StoredSpec
from gateway.kinds.originals import exchange_in_words, exchanges
from gateway.kinds.rows import CompletePair, PredictionRow, SourceNumbers, labels, recalls
from gateway.kinds.task_kind import TOP, Fields, KindRows, Measurement, Scored, TaskKind
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
    Ignored,
    ObjectOutcome,
    PredictedBox,
    TrueBox,
)
from shared.schemas.effects import Interval
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.metrics import (
    AveragePrecision,
    DetectionMetrics,
    DetectionScores,
    FoundObjects,
    ObjectSize,
    OriginalsCheck,
)
from shared.schemas.results import ModelResults, Relation
from shared.seeds import derive_seed
from shared.service.endpoints import Services

NOTHING = "nothing"
OUTCOMES: tuple[ObjectOutcome, ...] = ("found", "mislocated", "misclassified", "missed", "ignored")
SIZES: tuple[ObjectSize, ...] = ("small", "medium", "large")
DEFAULTS = BoxSpec()
NEARBY = 0.1  # of the score, where findings are repeated
_IGNORED: dict[Ignored | None, int] = {None: COUNTED, "crowd": CROWD, "difficult": DIFFICULT}
_CAUSES = (
    "the class ids, the label map, the convention of the boxes (corners or sides, pixels or fractions), the score and "
    "IoU of `boxes`, and the preprocessing (rescale, mean and std, channels, letterbox)"
)

Answer = list[PredictedBox]
Truth = Sequence[TrueBox]  # an object that is not in an image any more, though in its source, has the outcome "gone"
_Places = tuple[Integers, Integers]  # of the images of an arm, which may repeat, and their source images or groups


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
    matching = match(_objects(truth, numbers), _predicted(rows), iou)
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


def _objects(truth: Sequence[TrueBox], numbers: dict[str, int]) -> Objects:
    """A box where an object is gone is tolerated, as one where it is difficult: perhaps the check is wrong."""
    gone = [isinstance(thing, DetectedObject) and thing.outcome == "gone" for thing in truth]
    boxes = np.array([thing.box for thing in truth], float).reshape(-1, 4)
    own = np.array([np.nan if thing.area is None else thing.area for thing in truth], float)
    sides = boxes[:, 2:] - boxes[:, :2]
    return Objects(
        boxes,
        np.array([numbers[thing.label] for thing in truth], np.int64),
        np.where(np.isnan(own), sides.prod(axis=1), own),
        np.where(gone, DIFFICULT, np.array([_IGNORED[thing.ignore] for thing in truth], np.int64)),
    )


def _predicted(rows: Sequence[Sequence[float]]) -> Predicted:
    columns = np.array(rows, float).reshape(-1, 6)
    return Predicted(columns[:, 2:], columns[:, 0].astype(np.int64), columns[:, 1])


def _changed(original: Scored, image: Scored) -> bool | None:
    """Whether it loses an object that it found on the original."""
    arms = (cast("dict[str, list[dict[str, str]]] | None", scored.detail["detected"]) for scored in (original, image))
    before, after = ([thing["outcome"] for thing in arm["objects"]] if arm else None for arm in arms)
    if before is None or after is None:
        return None
    return any(was == "found" != now != "gone" for was, now in zip(before, after, strict=False))


def _limits(rules: BoxSpec, classes: Sequence[str], confidence: float | None = None) -> CountingLimits:
    chosen = [rules.scores.get(name, rules.score) if confidence is None else confidence for name in classes]
    return CountingLimits(rules.iou, np.array(chosen, float))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxScores(Scores):
    """`Scores`, and the boxes of the images behind them.

    `images` are distinct, with the objects that count in their pairs; `pairs` (p × 4) has the places of original, null
    arm, counterfactual and reference arm of every pair that counts, and `cluster_of_pair` its source image or group:
    first those of `rows`, in their order, then those of images without objects. `every` are the places of all
    originals, `group` their groups. `rows` names the label of each row of the scores, and the pair that it belongs to.
    """

    classes: tuple[str, ...]
    rules: BoxSpec
    images: list[BoxedPair]
    pairs: Integers
    counted: NDArray[np.bool_]
    cluster_of_pair: Integers
    every: Integers
    every_group: Integers
    row_pair: Integers
    row_label: list[str]


class BoxDetail:
    """Collects the boxes of predictions: about 50 bytes a box, for every distinct image."""

    def __init__(self, classes: Sequence[str], *, rules: BoxSpec) -> None:
        self._classes, self._rules = tuple(classes), rules
        self._numbers = {name: place for place, name in enumerate(classes)}
        self._images: list[BoxedPair] = []
        self._pairs: list[tuple[int, int, int, int]] = []
        self._counted, self._cluster = array("b"), array("q")
        self._unscored: list[tuple[tuple[int, int, int, int], bool, int]] = []
        self._every, self._group, self._row_pair = array("q"), array("q"), array("q")
        self._row_label: list[str] = []

    def add(
        self,
        numbers: SourceNumbers,
        original: PredictionRow | None,
        pairs: Sequence[CompletePair],
        unscored: Sequence[CompletePair] = (),
    ) -> None:
        """As in `Detail`."""
        if original is None or original.detail["detected"] is None:
            return
        places: dict[tuple[str | None, frozenset[int]], int] = {}

        def place(row: PredictionRow) -> int:
            key = (row.counterfactual_id, row.gone)
            if key not in places:
                places[key] = len(self._images)
                objects = true_objects(row, self._numbers) or _objects((), {})
                self._images.append(BoxedPair(objects, all_boxes(row)))
            return places[key]

        self._every.append(place(original))
        self._group.append(numbers.group)
        for pair in pairs:
            for label in labels(pair.original):
                self._row_pair.append(len(self._pairs))
                self._row_label.append(label)
            self._pairs.append(self._places(place, pair))
            self._counted.append(pair.edit.counted)
            self._cluster.append(numbers.group)
        for pair in unscored:
            self._unscored.append((self._places(place, pair), pair.edit.counted, numbers.group))

    @staticmethod
    def _places(place: Callable[[PredictionRow], int], pair: CompletePair) -> tuple[int, int, int, int]:
        return (place(pair.original), place(pair.null), place(pair.counterfactual), place(pair.reference))

    def rows(self, scores: Scores) -> KindRows:
        """As in `Detail`."""
        return KindRows(
            BoxScores(
                **{column.name: getattr(scores, column.name) for column in fields(scores)},
                classes=self._classes,
                rules=self._rules,
                images=self._images,
                pairs=np.array([*self._pairs, *(pair for pair, _, _ in self._unscored)], np.int64).reshape(-1, 4),
                counted=np.array([*self._counted, *(counted for _, counted, _ in self._unscored)], bool),
                cluster_of_pair=np.array([*self._cluster, *(group for _, _, group in self._unscored)], np.int64),
                every=np.asarray(self._every),
                every_group=np.asarray(self._group),
                row_pair=np.asarray(self._row_pair),
                row_label=self._row_label,
            )
        )


def true_objects(row: PredictionRow, numbers: dict[str, int]) -> Objects | None:
    """The objects of an image by a prediction for it; None without a truth."""
    detected = row.detail["detected"]
    return None if detected is None else _objects(Detected.model_validate(detected).objects, numbers)


def all_boxes(row: PredictionRow) -> Predicted:
    """All boxes of a prediction, confident or not."""
    return _predicted(cast("list[list[float]]", row.detail["boxes"]))


class _Precision(NamedTuple):
    """Average precision, over all scores: of each arm, and that of counterfactuals less that of reference arms."""

    of_arms: Mapping[str, AveragePrecision]
    difference: float | None
    interval: Interval | None


def _precision_of(scores: BoxScores, arms: Mapping[str, _Places], seed: int) -> _Precision:
    def images_at(places: Integers) -> list[BoxedPair]:
        return [scores.images[place] for place in places.tolist()]

    classes = len(scores.classes)
    of_arms = {name: average_precision(images_at(places), classes) for name, (places, _) in arms.items()}
    counterfactuals, cluster = arms["counterfactuals"]
    references = images_at(scores.pairs[scores.counted, 3])
    return _Precision(of_arms, *precision_difference(images_at(counterfactuals), references, cluster, classes, seed))


def detection_metrics(
    scores: BoxScores, seed: int, confidence: float | None = None, reported: DetectionMetrics | None = None
) -> DetectionMetrics:
    """The figures of one model under one method. `seed`: the analysis's seed.

    `reported`: those at another confidence, whose average precision is the same.
    """
    limits = _limits(scores.rules, scores.classes, confidence)
    matched = [limits.match(image) for image in scores.images]
    pairs, cluster = scores.pairs[scores.counted], scores.cluster_of_pair[scores.counted]
    original, null, counterfactual, reference = pairs.T
    arms = {
        "all_originals": (scores.every, scores.every_group),
        "originals": (original, cluster),
        "nulls": (null, cluster),
        "counterfactuals": (counterfactual, cluster),
    }
    if reported is None:
        precision = _precision_of(scores, arms, seed)
    else:
        of_arms = {name: getattr(reported, name).precision for name in arms}
        precision = _Precision(of_arms, reported.delta_ap, reported.ap_interval)
    means = differences(scores, scores.whole).correct
    hallucinating = np.array([bool((matching.fate == HALLUCINATION).any()) for matching in matched], bool)
    more = Units.of(cluster, cluster).means(
        hallucinating[counterfactual].astype(float) - hallucinating[reference].astype(float)
    )
    return DetectionMetrics(
        classes=list(scores.classes),
        iou=limits.iou,
        score=scores.rules.score if confidence is None else confidence,
        **{name: _detection_scores(scores, matched, arm, precision.of_arms[name]) for name, arm in arms.items()},
        delta_recall=float(means.mean()) if len(means) else None,
        interval=_interval(means, seed),
        delta_ap=precision.difference,
        ap_interval=precision.interval,
        delta_hallucinating=float(more.mean()) if len(more) else None,
        hallucinating_interval=_interval(more, seed),
        lost=clustered_rate(losing(matched, original, counterfactual), cluster),
        lost_null=clustered_rate(losing(matched, original, null), cluster),
    )


def _interval(means: Floats, seed: int) -> Interval | None:
    return mean_interval(means, LEVEL, seed) if len(means) > 1 else None


def _detection_scores(
    scores: BoxScores, matched: Sequence[MatchedObjects], arm: _Places, precision: AveragePrecision
) -> DetectionScores:
    """The figures of the images of an arm."""
    places, cluster = arm
    chosen = [(scores.images[place], matched[place]) for place in places.tolist()]
    empty = np.zeros(0, np.int64)
    outcome = np.concatenate([empty, *(matching.outcome for _, matching in chosen)])
    fate = np.concatenate([empty, *(matching.fate for _, matching in chosen)])
    label = np.concatenate([empty, *(image.objects.label for image, _ in chosen)])
    size = np.concatenate([empty, *(sizes(image.objects.area) for image, _ in chosen)])
    counts = outcome != IGNORED
    found, mislocated, misclassified, missed, _ = (int((outcome == number).sum()) for number in range(len(OUTCOMES)))

    def of(these: NDArray[np.bool_]) -> FoundObjects:
        return FoundObjects(objects=int((these & counts).sum()), found=int((these & (outcome == FOUND)).sum()))

    hallucinating = np.array([(matching.fate == HALLUCINATION).any() for _, matching in chosen], bool)
    return DetectionScores(
        images=len(set(places.tolist())),
        objects=int(counts.sum()),
        found=found,
        mislocated=mislocated,
        misclassified=misclassified,
        missed=missed,
        hallucinations=int((fate == HALLUCINATION).sum()),
        duplicates=int((fate == DUPLICATE).sum()),
        hallucinating=clustered_rate(hallucinating, cluster),
        classes=[of(label == number) for number in range(len(scores.classes))],
        sizes={name: of(size == number) for number, name in enumerate(SIZES)},
        precision=precision,
    )


def _at_confidence(rows: KindRows, confidence: float, reported: ModelResults) -> tuple[Scores, Fields]:
    """The scores if boxes below this confidence do not count."""
    scores = rows.scores
    assert isinstance(scores, BoxScores)
    changed = _rescored(scores, _limits(scores.rules, scores.classes, confidence))
    metrics = detection_metrics(changed, derive_seed("confidence", 0), confidence, reported.detection)
    return changed, {"detection": metrics}


def _nearby(rows: KindRows) -> dict[str, Scores]:
    """The scores if boxes count from a score 0.1 lower on, or 0.1 higher."""
    scores = rows.scores
    assert isinstance(scores, BoxScores)
    limits = _limits(scores.rules, scores.classes)
    moved: dict[str, Scores] = {}
    for shift in (-NEARBY, NEARBY):
        score = limits.score + shift
        if len(score) and score.min() > 0 and score.max() <= 1:
            name = f"{abs(shift):g} {'lower' if shift < 0 else 'higher'}"
            name = name if scores.rules.scores else f"{scores.rules.score + shift:g}"
            moved[name] = _rescored(scores, limits._replace(score=score))
    return moved


def _rescored(scores: BoxScores, limits: CountingLimits) -> BoxScores:
    recalls = [_recall_by_label(image, limits.match(image), scores.classes) for image in scores.images]

    def of_rows(column: int) -> Floats:
        places = scores.pairs[scores.row_pair, column].tolist()
        return np.array([recalls[place][label] for place, label in zip(places, scores.row_label, strict=True)], float)

    scored = scores.pairs[: len(scores.ordinal), 0].tolist()
    return replace(
        scores,
        original=np.array([recalls[place][ALL_CLASSES] for place in scored], float),
        null=of_rows(1),
        counterfactual=of_rows(2),
        sham=None if scores.sham is None else of_rows(3),
    )


def _recall_by_label(image: BoxedPair, matching: MatchedObjects, classes: Sequence[str]) -> dict[str, float]:
    outcomes = zip(image.objects.label.tolist(), matching.outcome.tolist(), strict=True)
    return recalls((classes[label], outcome == FOUND) for label, outcome in outcomes if outcome != IGNORED)


class BoxedOriginals:
    """The originals of a detector. Without ground truth its own confident boxes are the reference."""

    def __init__(self, classes: Sequence[str], relation: Relation, seed: int, *, rules: BoxSpec) -> None:
        self._classes, self._relation, self._limits = tuple(classes), relation, _limits(rules, classes)
        self._numbers = {name: place for place, name in enumerate(classes)}
        self._seed = derive_seed("originals", seed)
        self._images: list[BoxedPair] = []
        self._group = array("q")

    def add(self, group: int, row: PredictionRow | None) -> None:
        objects = None if row is None else true_objects(row, self._numbers)
        if row is not None and objects is not None and (objects.ignore == COUNTED).any():
            self._group.append(group)
            self._images.append(BoxedPair(objects, all_boxes(row)))
        elif row is not None and self._relation == "metamorphic":
            self._group.append(group)
            self._images.append(BoxedPair(_objects((), {}), all_boxes(row)))

    def check(self) -> OriginalsCheck | None:
        if self._relation == "metamorphic":
            return self._unlabelled()
        judged = judge_boxes(self._images, np.asarray(self._group), self._classes, self._limits, self._seed)
        if judged is None:
            return None
        check = OriginalsCheck(
            right=judged.recall,
            chance=judged.chance,
            standing=judged.standing,
            only="" if judged.confident else NOTHING,
            order=exchanges(judged.order, self._classes),
        )
        return check.model_copy(update={"sentence": _sentence(check, judged, self._limits)})

    def _unlabelled(self) -> OriginalsCheck | None:
        boxes = sum(int(self._limits.are_confident(image.predicted).sum()) for image in self._images)
        if boxes or len(self._images) < LEAST_SOURCES:
            return None
        sentence = f"It detects nothing on the {len(self._images)} originals, so nothing can be lost. Check {_CAUSES}."
        return OriginalsCheck(standing="open", only=NOTHING, sentence=sentence)


_READ_AS = {
    "transposed": "read as top, left, bottom, right, its boxes find {recall} of the objects: exchange x and y",
    "sides": "read as left, top, width, height, its boxes find {recall} of the objects: convert them to corners",
    "corners as sides": "the ground truth has corners where sides are read, or sides where corners are: with width and "
    "height in place of right and bottom, its boxes find {recall} of the objects",
    "centres": "read as centre, width and height, its boxes find {recall} of the objects: convert them to corners",
    "scaled": "scaled by {x:.2g} horizontally and {y:.2g} vertically, and moved, its boxes find {recall} of the "
    "objects: give them in pixels of the image, before resizing and padding",
}


def _sentence(check: OriginalsCheck, judged: JudgedBoxes, limits: CountingLimits) -> str:
    """What to say first of a detector; "" if it is sound and its boxes are best as they are."""
    recall = f"recall {judged.recall.value or 0:.0%} on the {judged.recall.n} originals"
    bar = f"where its boxes for other images have {judged.chance:.0%}"
    misread = judged.misread
    causes = [f"{exchange_in_words(check)} Correct the class ids, the order of the classes, or the label map."]
    causes = causes if check.order else []
    if misread is not None:
        x, y = misread.scale
        causes.append(f"{_READ_AS[misread.convention].format(recall=f'{misread.recall:.0%}', x=x, y=y)}.")
    cause = " And ".join(causes)
    if cause and check.standing != "unsound":
        return f"R{recall[1:]}, but {cause}"
    if check.standing == "sound":
        return ""
    if check.standing == "open":
        return f"Not shown to be better than chance: {recall}, {bar}. Check {_CAUSES}, or submit more images."
    if cause:
        return f"Not testable: {recall}, because {cause} Then submit again."
    if check.only:
        highest = "it returns no box at all" if judged.highest is None else f"its highest score is {judged.highest:.2g}"
        least = f"{limits.score.min():g}" if len(limits.score) else "0"
        return f"Not testable: {recall}, since no box has a score from {least} on ({highest}). Check {_CAUSES}."
    return f"Not testable: {recall}, {bar}. Check {_CAUSES}."


def _figures(rows: KindRows, of: Measurement) -> Fields:
    assert isinstance(rows.scores, BoxScores)
    metrics = detection_metrics(rows.scores, of.seed)
    best = _best_scores(rows.scores, of.seed) if of.labelled else {}
    return {"detection": metrics.model_copy(update={"best_scores": best})}


def _best_scores(scores: BoxScores, seed: int) -> dict[str, float]:
    """By class the score from which on its boxes have the highest F1 on the originals."""
    sample = np.random.default_rng(seed).permutation(len(scores.every))[:MOST_COMPARED]
    images = [scores.images[place] for place in scores.every[sample].tolist()]
    best = best_scores(images, len(scores.classes), scores.rules.iou)
    return {name: score for name, score in zip(scores.classes, best, strict=True) if score is not None}


def _in_job(kind: TaskKind[Answer, Truth], spec: StoredSpec) -> TaskKind[Answer, Truth]:
    rules = spec.boxes or DEFAULTS
    return replace(
        kind,
        as_truth=partial(_confident, rules=rules),
        judge=partial(_judge, rules=rules),
        detail=partial(BoxDetail, rules=rules),
        originals=partial(BoxedOriginals, rules=rules),
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
    figures=_figures,
    at_confidence=_at_confidence,
    nearby=_nearby,
    configured=_in_job,
    without=_without,
    with_added=_with_added,
    on_power=(
        " An image counts for each class of its boxes, with the share of these objects that is found. That varies less "
        "between images than accuracy where images have several objects, so smaller drops may be detectable."
    ),
)
