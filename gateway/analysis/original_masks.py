"""Whether a segmenter is right on the originals. If it is not, no cell can show what an edit costs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from gateway.analysis.certainty import LEVEL, mean_overlap
from gateway.analysis.effects import Floats, Integers, Units
from gateway.analysis.originals import LEAST_OTHERS, SOUND
from shared.schemas.effects import MeanOverlap
from shared.schemas.metrics import OriginalsStanding

SAME = 0.5  # IoU above which one class at most can be meant by a predicted one
SMALL = 1e-9  # a difference of shares that is rounding
SCALED = 0.02  # a class's share of the pixels differs by less if one mask is scaled to images of other sizes


class MaskedOriginals(NamedTuple):
    """One segmenter on n originals with masks: their groups, and pixels by class.

    `reference` and `hits` (n × classes) count the pixels of the mask, and those of them that are right. `predicted`
    (n × classes + 1) ends with classes that the job does not have. `halves` (2 × classes × classes + 1) are the
    confusion counts of the images of even groups, and of odd ones.
    """

    group: Integers
    reference: Integers
    predicted: Integers
    hits: Integers
    halves: Integers


@dataclass(frozen=True, slots=True)
class JudgedMasks:
    """A segmenter on the originals; classes are numbers.

    `overlap`: the mean over images of the mean IoU of their classes. `chance`: that of a mask of one class, or of
    pixels drawn by the shares in which it predicts the classes, whichever is higher. `only`: the class that it predicts
    for every pixel; None if there are several. `alike`: each of its masks has the same shares of the classes. `order`:
    predicted class → the class meant.
    """

    overlap: MeanOverlap
    chance: float
    standing: OriginalsStanding
    only: int | None
    alike: bool
    order: dict[int, int]


def judge_masks(originals: MaskedOriginals, seed: int) -> JudgedMasks | None:
    """How a segmenter stands on its originals; None without masks.

    `sound`: the 95 % interval (Student's t) of its mean IoU less `chance` lies above 0. Otherwise `unsound`: all its
    masks are alike, classes are exchanged, or the interval lies below a tenth of the way from chance to 1. `open`:
    neither is shown.
    """
    if not len(originals.group):
        return None
    overlap = _mean_overlap(originals.reference, originals.hits, originals.predicted[:, :-1])
    chance = max(_constant(originals), _drawn(originals), key=lambda values: float(values.mean()))
    order, alike = _exchange(originals.halves), _are_alike(originals)
    means = Units.of(originals.group, originals.group).means(overlap - chance)
    half = 1.0
    if len(means) > 1:
        half = float(t.ppf((1 + LEVEL) / 2, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means)))
    low, high = float(means.mean()) - half, float(means.mean()) + half
    standing: OriginalsStanding = "open"
    if low > 0 and not alike:
        standing = "sound"
    elif order or alike or high < SOUND * float((1 - chance).mean()):
        standing = "unsound"
    total = originals.predicted.sum(axis=0)
    only = int(total.argmax()) if alike and np.count_nonzero(total) == 1 else None
    right = mean_overlap(overlap, originals.group, seed)
    return JudgedMasks(right, float(chance.mean()), standing, only, alike, order)


def _mean_overlap(reference: Integers, hits: Integers | Floats, predicted: Integers | Floats) -> Floats:
    """Per image the mean IoU of the classes in its mask, 0 … 1."""
    union = reference + predicted - hits
    overlaps = np.divide(hits, union, out=np.zeros(union.shape), where=(reference > 0) & (union > 0))
    return np.asarray(overlaps.sum(axis=1) / np.maximum((reference > 0).sum(axis=1), 1))


def _constant(originals: MaskedOriginals) -> Floats:
    """Per image the mean IoU of a mask of one class, the one with which it is highest over all images."""
    by_class = shares(originals.reference) / np.maximum((originals.reference > 0).sum(axis=1, keepdims=True), 1)
    return np.asarray(by_class[:, int(by_class.mean(axis=0).argmax())])


def _drawn(originals: MaskedOriginals) -> Floats:
    """Per image the mean IoU to expect if pixels were drawn by the shares of the classes in all predictions."""
    pixels = np.maximum(originals.reference.sum(axis=1, keepdims=True), 1)
    drawn = (originals.predicted / pixels).mean(axis=0)[:-1]
    return _mean_overlap(originals.reference, originals.reference * drawn, pixels * drawn)


def _are_alike(originals: MaskedOriginals) -> bool:
    """Whether all predictions have the same shares of the classes, although enough masks differ.

    One mask that is scaled to images of different sizes has nearly the same shares; then masks must differ clearly.
    """
    predicted, reference = shares(originals.predicted), shares(originals.reference)
    unlike = (np.abs(reference - predicted[:, :-1]) > SMALL).any(axis=1)
    varied = (np.abs(reference - np.median(reference, axis=0)) > 3 * SCALED).any(axis=1)
    spread = float(np.ptp(predicted, axis=0).max())
    return any(
        spread < limit and int(np.count_nonzero(others)) >= LEAST_OTHERS
        for limit, others in ((SMALL, unlike), (SCALED, varied))
    )


def shares(counts: Integers) -> Floats:
    """Pixels by class (n × classes) as shares of each image."""
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def have_same_shares(predicted: Integers) -> bool:
    """Whether each mask has the same share of every class, as one fixed mask has on images of one size."""
    return bool(np.ptp(shares(predicted), axis=0).max() < SMALL)


def _exchange(halves: Integers) -> dict[int, int]:
    """The predicted classes that mean another one on both halves: their IoU with it is above one half."""
    meant = np.logical_and(*(_overlaps(counts) > SAME for counts in halves))
    pairs: list[list[int]] = np.argwhere(meant).tolist()
    return {predicted: truth for predicted, truth in pairs if predicted != truth}


def _overlaps(counts: Integers) -> NDArray[np.float64]:
    """IoU of each predicted class (row) with each class of the masks (column), pooled."""
    hits = counts[:, :-1].T
    union = counts[:, :-1].sum(axis=0)[:, np.newaxis] + counts.sum(axis=1)[np.newaxis] - hits
    return np.asarray(np.divide(hits, union, out=np.zeros(hits.shape), where=union > 0))
