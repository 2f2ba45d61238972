"""Whether a detector is right on the originals, and how its boxes are misread if it is not.

Boxes that come in another convention, such as top before left, find nothing where the detector itself is good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
from scipy.stats import t

from gateway.analysis.certainty import LEVEL, mean_overlap
from gateway.analysis.detection import (
    FOUND,
    MISCLASSIFIED,
    MOST_COMPARED,
    BoxedPair,
    CountingLimits,
    MatchedObjects,
    Predicted,
)
from gateway.analysis.effects import Floats, Integers, Originals, Units
from gateway.analysis.originals import LEAST_GAIN, SOUND, JudgedOriginals, is_better, judge_originals
from shared.schemas.effects import MeanOverlap
from shared.schemas.metrics import OriginalsStanding

LEAST_FITTED = 6  # boxes and objects of which a scale is estimated
_QUANTILES = (0.1, 0.9)


@dataclass(frozen=True, slots=True)
class Misread:
    """How boxes have to be read instead: `convention` names it ("scaled": as `scale` says, of x and of y).

    `recall` is the mean then, of images that did not choose it. A `scale` below 0 mirrors.
    """

    convention: str
    recall: float
    scale: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class JudgedBoxes:
    """A detector on the originals; classes are numbers.

    `recall`: the mean over images of the share of their objects that is found. `chance`: that of its boxes for other
    images. `confident`: how many boxes count; `highest`: the highest score, None without boxes. `only`: the class that
    it gives to every object that it locates, whatever its label. `order`: predicted class → the class meant. `misread`:
    None if its boxes are best as they are.
    """

    recall: MeanOverlap
    chance: float
    standing: OriginalsStanding
    confident: int
    highest: float | None
    only: int | None
    order: dict[int, int]
    misread: Misread | None


def judge_boxes(
    images: Sequence[BoxedPair], group: Integers, classes: Sequence[str], limits: CountingLimits, seed: int
) -> JudgedBoxes | None:
    """How a detector stands on originals with objects that count; None without any.

    `sound`: the 95 % interval (Student's t) of its mean recall less `chance` lies above 0, boxes are not misread, and
    objects that it locates do not all get one class.
    `unsound`: it does not lie there, and classes are exchanged, boxes are misread, or the interval lies below a tenth
    of the way from chance to 1. `open`: neither is shown.
    """
    if not images:
        return None
    matched = [limits.match(image) for image in images]
    recall = np.array([matching.share_found for matching in matched])
    sample = np.random.default_rng(seed).permutation(len(group))[:MOST_COMPARED]
    chance = float(np.mean([limits.match(image).share_found for image in _with_others(images, group, sample)]))
    named = _named(images, group, matched, classes, limits, seed)
    order, only = ({}, None) if named is None else (named.order, named.only)
    misread = _misread([images[place] for place in sample], group[sample], recall[sample], limits)
    excess = Units.of(group, group).means(recall - chance)
    half = 1.0
    if len(excess) > 1:
        half = float(t.ppf((1 + LEVEL) / 2, len(excess) - 1) * excess.std(ddof=1) / np.sqrt(len(excess)))
    low, high = float(excess.mean()) - half, float(excess.mean()) + half
    standing: OriginalsStanding = "open"
    if low > 0:
        standing = "sound" if misread is None and only is None else "open"
    elif order or misread or high < SOUND * (1 - chance):
        standing = "unsound"
    scores = [float(image.predicted.score.max()) for image in images if len(image.predicted.score)]
    return JudgedBoxes(
        mean_overlap(recall, group, seed),
        chance,
        standing,
        sum(int(limits.are_confident(image.predicted).sum()) for image in images),
        max(scores, default=None),
        only,
        order,
        misread,
    )


def _with_others(images: Sequence[BoxedPair], group: Integers, sample: Integers) -> list[BoxedPair]:
    """The objects of a sample of images with the boxes for an image of another group."""
    order = sample[np.argsort(group[sample], kind="stable")]
    most = int(np.unique(group[order], return_counts=True)[1].max())
    others = np.roll(order, most)
    return [
        BoxedPair(images[place].objects, images[other].predicted)
        for place, other in zip(order.tolist(), others.tolist(), strict=True)
    ]


def _named(
    images: Sequence[BoxedPair],
    group: Integers,
    matched: Sequence[MatchedObjects],
    classes: Sequence[str],
    limits: CountingLimits,
    seed: int,
) -> JudgedOriginals | None:
    """How the classes of located objects agree with their labels; None without located objects."""
    truth, predicted, groups = [], [], []
    for name, image, matching in zip(group.tolist(), images, matched, strict=True):
        confident = image.predicted.label[limits.are_confident(image.predicted)]
        for place in np.flatnonzero(np.isin(matching.outcome, (FOUND, MISCLASSIFIED))).tolist():
            truth.append(int(image.objects.label[place]))
            predicted.append(int(confident[matching.by[place]]))
            groups.append(name)
    true, said = np.array(truth, np.int64), np.array(predicted, np.int64)
    located = Originals(1 + (true != said).astype(np.int64), np.array(groups, np.int64), true, said, tuple(classes))
    return judge_originals(located, len(classes), seed)


# Conventions of boxes


def _transposed(boxes: Floats) -> Floats:
    return np.asarray(boxes[:, [1, 0, 3, 2]])


def _sides(boxes: Floats) -> Floats:
    return np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]])


def _corners_as_sides(boxes: Floats) -> Floats:
    return np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]])


def _centres(boxes: Floats) -> Floats:
    return np.hstack([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2])


CONVENTIONS: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(
    {"transposed": _transposed, "sides": _sides, "corners as sides": _corners_as_sides, "centres": _centres}
)
_FITTED = {"scaled": (1.0, 1.0), "mirrored": (-1.0, 1.0), "upside down": (1.0, -1.0)}  # signs of the scales of x and y


def _misread(images: Sequence[BoxedPair], group: Integers, recall: Floats, limits: CountingLimits) -> Misread | None:
    """The convention with the highest mean recall, if it is surely better than the boxes as they are."""
    if recall.mean() > 1 - LEAST_GAIN:
        return None
    recalls = {name: _recalls(images, limits, read) for name, read in CONVENTIONS.items()}
    readings = {name: Misread(name, float(values.mean())) for name, values in recalls.items()}
    for name, signs in _FITTED.items():
        if (fitted := _scaled(images, group, limits, signs)) is not None:
            recalls[name], scale = fitted
            readings[name] = Misread(name, float(recalls[name].mean()), scale)
    best = max(recalls, key=lambda name: readings[name].recall)
    units = Units.of(group, group)
    return readings[best] if is_better(units.means(recall), units.means(recalls[best])) else None


def _recalls(images: Sequence[BoxedPair], limits: CountingLimits, read: Callable[[Floats], Floats]) -> Floats:
    return np.array([limits.match(_reading(image, read)).share_found for image in images])


def _reading(image: BoxedPair, read: Callable[[Floats], Floats]) -> BoxedPair:
    boxes, label, score = image.predicted
    read_boxes = read(boxes)
    kept = (read_boxes[:, 2:] > read_boxes[:, :2]).all(axis=1)
    return BoxedPair(image.objects, Predicted(read_boxes[kept], label[kept], score[kept]))


def _scaled(
    images: Sequence[BoxedPair], group: Integers, limits: CountingLimits, signs: tuple[float, float]
) -> tuple[Floats, tuple[float, float]] | None:
    """Recalls with boxes scaled and moved as the images of the other half say, and the scale; None of few boxes.

    Where a sign is negative, boxes are mirrored.
    """
    recalls, scales = np.zeros(len(images)), []
    halves = [np.flatnonzero(group % 2 == half).tolist() for half in range(2)]
    for half, others in (halves, halves[::-1]):
        fitted = _fit([images[place] for place in others], limits, np.array(signs))
        if fitted is None:
            return None
        scale, offset = fitted
        moved = partial(_moved, scale=scale, offset=offset)
        recalls[half] = _recalls([images[place] for place in half], limits, moved)
        scales.append(scale)
    x, y = np.mean(scales, axis=0).tolist()
    return recalls, (x, y)


def _moved(boxes: Floats, scale: Floats, offset: Floats) -> Floats:
    first, second = boxes[:, :2] * scale + offset, boxes[:, 2:] * scale + offset
    return np.hstack([np.minimum(first, second), np.maximum(first, second)])


def _fit(images: Sequence[BoxedPair], limits: CountingLimits, signs: Floats) -> tuple[Floats, Floats] | None:
    """The scale and offset of x and y that make confident boxes spread as objects do; None of few.

    `signs`: those of the scale of x and of y.
    """
    predicted = np.concatenate(
        [np.zeros((0, 4))] + [image.predicted.boxes[limits.are_confident(image.predicted)] for image in images]
    )
    true = np.concatenate([np.zeros((0, 4))] + [image.objects.boxes for image in images])
    if min(len(predicted), len(true)) < LEAST_FITTED:
        return None
    low, high = np.quantile(predicted.reshape(-1, 2), _QUANTILES, axis=0)
    least, most = np.quantile(true.reshape(-1, 2), _QUANTILES, axis=0)
    if ((high - low) <= 0).any():
        return None
    scale = signs * (most - least) / (high - low)
    return scale, (least + most - scale * (low + high)) / 2
