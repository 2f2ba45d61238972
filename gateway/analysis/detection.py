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
from shared.schemas.metrics import AveragePrecision

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
STEPS = np.round(np.arange(0.05, 1.0, 0.05), 2)  # scores of which the best is named
LEAST_RESAMPLED = 12  # source images, or groups, of a bootstrap
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

    def match(self, image: BoxedPair) -> MatchedObjects:
        """What becomes of the objects and of the confident boxes of an image."""
        objects, predicted = image
        boxes, label, score = predicted
        confident = self.are_confident(predicted)
        return match(objects, Predicted(boxes[confident], label[confident], score[confident]), self.iou)


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


def precision_difference(
    images: Sequence[BoxedPair], others: Sequence[BoxedPair], cluster: Integers, classes: int, seed: int
) -> tuple[float | None, Interval | None]:
    """AP of images less that of the others, each beside its counterpart, with a percentile bootstrap over clusters.

    No interval below 12 clusters.
    """
    if not images:
        return None, None
    pair = [_Resampled(_evaluated(arm, classes, all_sizes=False)) for arm in (images, others)]
    everything = np.arange(len(images))
    both = [resampled.precision(everything) for resampled in pair]
    if None in both:
        return None, None
    members = [np.flatnonzero(cluster == name) for name in np.unique(cluster)]
    difference = float(both[0] or 0) - float(both[1] or 0)
    if len(members) < LEAST_RESAMPLED:
        return difference, None
    random, differences = np.random.default_rng(seed), []
    for _ in range(RESAMPLES):
        drawn = np.concatenate([members[place] for place in random.integers(len(members), size=len(members))])
        first, second = (resampled.precision(drawn) for resampled in pair)
        differences += [] if first is None or second is None else [first - second]
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return difference, Interval(low=float(low), high=float(high), level=LEVEL, kind="bootstrap")


class _Resampled:
    """The AP of a sample of images with repetitions, from the evaluation of each image once."""

    def __init__(self, evaluator: Any) -> None:
        self._evaluator, parameters = evaluator, evaluator.params
        self._images, kinds = len(parameters.imgIds), len(parameters.catIds) * len(parameters.areaRng)
        self._by_class = [evaluator.evalImgs[n * self._images : (n + 1) * self._images] for n in range(kinds)]

    def precision(self, places: Integers) -> float | None:
        evaluator = self._evaluator
        evaluator.evalImgs = [of_class[place] for of_class in self._by_class for place in places.tolist()]
        for parameters in (evaluator.params, evaluator._paramsEval):
            parameters.imgIds = list(range(len(places)))
        evaluator.accumulate()
        precision = evaluator.eval["precision"][:, :, :, 0, -1]
        there = precision[precision > -1]
        return float(there.mean()) if len(there) else None


def _evaluated(images: Sequence[BoxedPair], classes: int, all_sizes: bool = True) -> Any:
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
    if not all_sizes:
        evaluator.params.areaRng, evaluator.params.areaRngLbl = evaluator.params.areaRng[:1], ["all"]
        evaluator.params.maxDets = [MOST_OF_CLASS]
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
