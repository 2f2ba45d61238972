"""Boxes of a detector against those of the ground truth: what became of each object, and COCO's average precision.

Boxes are rows of left, top, right, bottom in pixels. Average precision is pycocotools'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pycocotools import coco, cocoeval

from gateway.analysis.certainty import LEVEL
from gateway.analysis.effects import Floats, Integers
from shared.schemas.effects import Interval
from shared.schemas.metrics import AveragePrecision, PrecisionDifference, PrecisionFigure

SMALL, MEDIUM = 32**2, 96**2  # areas in square pixels under which objects are small, and medium: COCO's
NEAR = 0.1  # IoU from which a box is meant for an object that it does not meet (TIDE's)
COUNTED, CROWD, DIFFICULT = 0, 1, 2  # of an object: whether it counts, and why not
FOUND, MISLOCATED, MISCLASSIFIED, MISSED, IGNORED = range(5)  # what becomes of an object
MATCHED, TOLERATED, DUPLICATE, HALLUCINATION = range(
    4
)  # of a predicted box: an object's, or in an ignored one, or extra
MOST_OF_CLASS = 100  # boxes of a class and image that average precision looks at: COCO's
MOST_COMPARED = 512  # originals on which chance and the best scores are estimated
RESAMPLES = 200
SAME_PIXELS = 1.0
STEPS = np.round(np.arange(0.05, 1.0, 0.05), 2)  # scores of which the best is named
LEAST_RESAMPLED = 12  # source images, or groups, of a bootstrap
FIGURES: tuple[PrecisionFigure, ...] = ("ap", "ap50", "ap75", "small", "medium", "large")
_IOUS, _AT_50, _AT_75 = 10, 0, 5  # of COCO: 0.5, 0.55 … 0.95
_BEYOND = 2e10  # an area outside of all of COCO's ranges: what has it is ignored, but matched by IoU

# pycocotools prints its progress and has no switch for it. The name `print` of its modules is looked up here first.
for _module in (coco, cocoeval):
    _module.print = lambda *_, **__: None


class Objects(NamedTuple):
    """n objects of an image: boxes (n × 4), classes by number, areas, and whether they count (`COUNTED` …)."""

    boxes: Floats
    label: Integers
    area: Floats
    ignore: Integers


class Predicted(NamedTuple):
    """n predicted boxes of an image, the most confident first: boxes (n × 4), classes by number, scores."""

    boxes: Floats
    label: Integers
    score: Floats


class MatchedObjects(NamedTuple):
    """What becomes of each object (`FOUND` …), by which predicted box (−1: none), and of each box (`MATCHED` …)."""

    outcome: Integers
    by: Integers
    fate: Integers

    @property
    def share_found(self) -> float:
        """The share of the objects that count, at least one, that are found."""
        return float((self.outcome == FOUND).sum() / (self.outcome != IGNORED).sum())


class BoxedPair(NamedTuple):
    """An image with its objects and a detector's boxes, all of them and not those above a threshold alone."""

    objects: Objects
    predicted: Predicted


class CountingLimits(NamedTuple):
    """What counts: the least IoU, and the least score by number of the class."""

    iou: float
    score: Floats

    def are_confident(self, predicted: Predicted) -> NDArray[np.bool_]:
        """Whether each box counts."""
        return np.asarray(predicted.score >= self.score[predicted.label])

    def counting(self, predicted: Predicted) -> Predicted:
        """The boxes that count."""
        confident = self.are_confident(predicted)
        return Predicted(predicted.boxes[confident], predicted.label[confident], predicted.score[confident])

    def match(self, image: BoxedPair) -> MatchedObjects:
        """What becomes of the objects and of the confident boxes of an image."""
        return match(image.objects, self.counting(image.predicted), self.iou)


def are_alike(predicted: Predicted, other: Predicted) -> bool:
    """Whether two images have the same boxes, to the pixel."""
    same = np.array_equal(predicted.label, other.label)
    return same and np.allclose(predicted.boxes, other.boxes, rtol=0, atol=SAME_PIXELS)


def overlaps(boxes: Floats, others: Floats) -> Floats:
    """IoU of each box with each of the others."""
    shared = _intersections(boxes, others)
    union = _areas(boxes)[:, None] + _areas(others)[None, :] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros(shared.shape), where=union > 0))


def shares_inside(boxes: Floats, others: Floats) -> Floats:
    """The share of each box that lies in each of the others."""
    return np.asarray(_intersections(boxes, others) / _areas(boxes)[:, None])


def _intersections(boxes: Floats, others: Floats) -> Floats:
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.asarray((high - low).clip(min=0).prod(axis=2))


def _areas(boxes: Floats) -> Floats:
    return np.asarray((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))


def match(objects: Objects, predicted: Predicted, iou: float) -> MatchedObjects:
    """Match objects with confident boxes, one to one and in this order; `iou` is the least that finds an object.

    1. Each box, the most confident first, finds the object of its class with which its IoU is highest (as COCO does).
    2. Boxes in ignored objects of their class are tolerated.
    3. Objects that no box finds are misclassified by a box of another class there, the highest IoU first,
    4. or mislocated by one of their class near them.
    5. Any box left that meets a matched object is a duplicate; one in an ignored object of any class is tolerated, and
       all others are hallucinations.
    """
    number, boxes = len(objects.label), len(predicted.label)
    met = overlaps(predicted.boxes, objects.boxes)
    counts = objects.ignore == COUNTED
    same = predicted.label[:, None] == objects.label[None, :]
    outcome, by, fate = np.full(number, MISSED), np.full(number, -1), np.full(boxes, HALLUCINATION)
    outcome[~counts] = IGNORED

    def take(box: int, thing: int, what: int) -> None:
        outcome[thing], by[thing], fate[box] = what, box, MATCHED

    for box in range(boxes):
        free = np.where(counts & same[box] & (by < 0), met[box], -1.0)
        if free.max(initial=-1.0) >= iou:
            take(box, int(free.argmax()), FOUND)
    inside = _inside_ignored(objects, predicted, met, iou)
    fate[(fate == HALLUCINATION) & (inside & same).any(axis=1)] = TOLERATED
    for what, allowed, least in ((MISCLASSIFIED, ~same, iou), (MISLOCATED, same, NEAR)):
        table = np.where(allowed & counts[None, :] & (by < 0)[None, :] & (fate == HALLUCINATION)[:, None], met, -1.0)
        while table.size and table.max() >= least:
            box, thing = (int(place) for place in np.unravel_index(int(table.argmax()), table.shape))
            take(box, thing, what)
            table[box], table[:, thing] = -1.0, -1.0
    left = fate == HALLUCINATION
    fate[left & inside.any(axis=1)] = TOLERATED
    fate[left & (met[:, by >= 0] >= iou).any(axis=1)] = DUPLICATE
    return MatchedObjects(outcome, by, fate)


def _inside_ignored(objects: Objects, predicted: Predicted, met: Floats, iou: float) -> NDArray[np.bool_]:
    """Whether each box lies in each object, if that is a crowd, or meets it, if it is ignored otherwise."""
    crowd, difficult = objects.ignore == CROWD, objects.ignore == DIFFICULT
    lies_in = shares_inside(predicted.boxes, objects.boxes) if crowd.any() else met
    return np.asarray((crowd & (lies_in >= iou)) | (difficult & (met >= iou)))


def losing(matched: Sequence[MatchedObjects], before: Integers, after: Integers) -> NDArray[np.bool_]:
    """Whether an object that is found on the one image is not found on the other, by pairs of places.

    What an editor added follows the objects that both have.
    """
    pairs = [(matched[one].outcome, matched[other].outcome) for one, other in zip(before, after, strict=True)]
    shared = [(one[: len(other)], other[: len(one)]) for one, other in pairs]
    return np.array([((one == FOUND) & (other != FOUND)).any() for one, other in shared], bool)


def best_scores(images: Sequence[BoxedPair], classes: int, iou: float) -> list[float | None]:
    """By class the score from which on its boxes have the highest F1; of equals, the middle one. None without a hit."""
    f1 = np.zeros((len(STEPS), classes))
    for step, least in enumerate(STEPS):
        limits = CountingLimits(iou, np.full(classes, least))
        found, errors = np.zeros(classes), np.zeros(classes)
        for image in images:
            outcome, _, fate = limits.match(image)
            hits = np.bincount(image.objects.label[outcome == FOUND], minlength=classes)
            objects = np.bincount(image.objects.label[image.objects.ignore == COUNTED], minlength=classes)
            boxes = image.predicted.label[limits.are_confident(image.predicted)][fate != TOLERATED]
            found += hits
            errors += objects + np.bincount(boxes, minlength=classes) - 2 * hits
        f1[step] = np.divide(2 * found, 2 * found + errors, out=np.zeros(classes), where=found > 0)
    best: list[float | None] = []
    for of_class in f1.T:
        equal = np.flatnonzero(of_class == of_class.max())
        best.append(float(STEPS[equal[(len(equal) - 1) // 2]]) if of_class.max() > 0 else None)
    return best


def sizes(area: Floats) -> Integers:
    """0 for small objects, 1 for medium ones, 2 for large ones, by COCO's limits."""
    return np.asarray((area >= SMALL).astype(np.int64) + (area >= MEDIUM))


def average_precision(images: Sequence[BoxedPair], classes: int) -> AveragePrecision:
    """pycocotools' figures of these images; an image may be there several times."""
    if not images:
        return AveragePrecision(ap=None, ap50=None, ap75=None, small=None, medium=None, large=None)
    evaluator = _evaluated(images, classes)
    evaluator.accumulate()
    evaluator.summarize()
    ap, ap50, ap75, small, medium, large = (None if value < 0 else float(value) for value in evaluator.stats[:6])
    return AveragePrecision(ap=ap, ap50=ap50, ap75=ap75, small=small, medium=medium, large=large)


def precision_differences(
    images: Sequence[BoxedPair], others: Sequence[BoxedPair], cluster: Integers, classes: int, seed: int
) -> dict[PrecisionFigure, PrecisionDifference]:
    """Each figure of images less that of the others, each beside its counterpart; percentile bootstraps over clusters.

    Figures without an object in one of the arms are left out. No interval below 12 clusters.
    """
    if not images:
        return {}
    pair = [Resampled(arm, classes) for arm in (images, others)]
    once = np.ones(len(images), np.int64)
    difference = pair[0].figures(once) - pair[1].figures(once)
    names, cluster_of = np.unique(cluster, return_inverse=True)
    drawn: list[Floats] = []
    random = np.random.default_rng(seed)
    for _ in range(RESAMPLES if len(names) >= LEAST_RESAMPLED else 0):
        weights = np.bincount(random.integers(len(names), size=len(names)), minlength=len(names))[cluster_of]
        drawn.append(pair[0].figures(weights) - pair[1].figures(weights))
    return {
        name: PrecisionDifference(difference=float(value), interval=_percentiles([row[place] for row in drawn]))
        for place, (name, value) in enumerate(zip(FIGURES, difference.tolist(), strict=True))
        if not np.isnan(value)
    }


def _percentiles(drawn: Sequence[float]) -> Interval | None:
    known = [value for value in drawn if not np.isnan(value)]
    if not known:
        return None
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(low=float(low), high=float(high), level=LEVEL, kind="bootstrap")


class _Ranked(NamedTuple):
    """The n boxes of one class and range of sizes, the most confident first.

    The image of each, and by IoU whether it hits and whether it counts (10 × n); `objects` that count, by image.
    """

    image: Integers
    hits: NDArray[np.bool_]
    counts: NDArray[np.bool_]
    objects: Integers


class Resampled:
    """The figures of a sample of images with repetitions, from pycocotools' evaluation of each image once.

    Boxes are ranked once: an image that is drawn twice counts twice in the sums. That is what `accumulate` of
    pycocotools gives for a list with repetitions, since equal boxes follow one another there.
    """

    def __init__(self, of: Sequence[BoxedPair], classes: int) -> None:
        evaluator = _evaluated(of, classes)
        parameters = evaluator.params
        images, self._sizes = len(parameters.imgIds), len(parameters.areaRng)
        parts = range(len(parameters.catIds) * self._sizes)
        self._parts = [_ranked(evaluator.evalImgs[n * images : (n + 1) * images]) for n in parts]
        self._recalls = parameters.recThrs

    def figures(self, weights: Integers) -> Floats:
        """AP, AP50, AP75, and AP of small, medium and large objects; NaN without objects."""
        # By part: AP by IoU.
        by_part = np.array([self._precision(part, weights) for part in self._parts])
        by_size = by_part.reshape(-1, self._sizes, by_part.shape[1])
        chosen = [by_size[:, 0], by_size[:, 0, _AT_50], by_size[:, 0, _AT_75], *(by_size[:, n] for n in (1, 2, 3))]
        return np.array([np.nan if np.isnan(each).all() else np.nanmean(each) for each in chosen])

    def _precision(self, part: _Ranked, weights: Integers) -> Floats:
        objects, ious = int((weights * part.objects).sum()), len(part.hits)
        if not objects:
            return np.full(ious, np.nan)
        of_box = weights[part.image]
        hits = np.cumsum(of_box * (part.hits & part.counts), axis=1)
        boxes = np.cumsum(of_box * part.counts, axis=1)
        precision = np.maximum.accumulate((hits / (boxes + np.spacing(1)))[:, ::-1], axis=1)[:, ::-1]
        precision = np.hstack([precision, np.zeros((ious, 1))])
        reached = [np.searchsorted(row / objects, self._recalls, side="left") for row in hits]
        return np.asarray(np.take_along_axis(precision, np.array(reached), axis=1).mean(axis=1))


def _ranked(images: Sequence[dict[str, Any] | None]) -> _Ranked:
    """The boxes in pycocotools' evaluations of single images for one class and range of sizes."""
    there = [(place, image) for place, image in enumerate(images) if image is not None]
    objects = np.zeros(len(images), np.int64)
    for place, image in there:
        objects[place] = int((~np.asarray(image["gtIgnore"], bool)).sum())
    scores = np.concatenate([np.zeros(0), *(image["dtScores"] for _, image in there)])
    order = np.argsort(-scores, kind="mergesort")
    numbers = [np.full(len(image["dtScores"]), place) for place, image in there]
    empty = np.zeros((_IOUS, 0))
    hits = np.concatenate([empty, *(image["dtMatches"] for _, image in there)], axis=1) != 0
    ignored = np.concatenate([empty, *(image["dtIgnore"] for _, image in there)], axis=1) != 0
    image_of_box = np.concatenate([np.zeros(0, np.int64), *numbers])
    return _Ranked(image_of_box[order], hits[:, order], ~ignored[:, order], objects)


def _evaluated(images: Sequence[BoxedPair], classes: int) -> Any:
    truths, predictions = coco.COCO(), coco.COCO()
    categories = [{"id": number + 1} for number in range(classes)]
    for data, entries in ((truths, _truths(images)), (predictions, _predictions(images))):
        data.dataset = {
            "images": [{"id": number} for number in range(len(images))],
            "categories": categories,
            "annotations": [{"id": number, **entry} for number, entry in enumerate(entries, start=1)],
        }
        data.createIndex()
    evaluator = cocoeval.COCOeval(truths, predictions, "bbox")
    evaluator.evaluate()
    return evaluator


def _truths(images: Sequence[BoxedPair]) -> list[Mapping[str, object]]:
    return [
        {
            **_annotation(number, boxes, label),
            "area": _BEYOND if ignore == DIFFICULT else area,
            "iscrowd": int(ignore == CROWD),
        }
        for number, (objects, _) in enumerate(images)
        for boxes, label, area, ignore in zip(*(part.tolist() for part in objects), strict=True)
    ]


def _predictions(images: Sequence[BoxedPair]) -> list[Mapping[str, object]]:
    return [
        {**_annotation(number, box, label), "area": (box[2] - box[0]) * (box[3] - box[1]), "score": score}
        for number, (_, predicted) in enumerate(images)
        for box, label, score in zip(*(part.tolist() for part in predicted), strict=True)
    ]


def _annotation(image: int, box: Sequence[float], label: int) -> dict[str, object]:
    left, top, right, bottom = box
    return {"image_id": image, "category_id": label + 1, "bbox": [left, top, right - left, bottom - top]}
