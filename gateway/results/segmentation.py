"""What a segmenter's figures need beside its scores: pixels pooled over images, and classes that are lost.

Memory: 48 bytes per group and class of the job.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval
from gateway.analysis.effects import Integers, Scores, differences
from gateway.analysis.segmentation import (
    class_pixels,
    difference,
    pooled_difference,
    pooled_interval,
    pooled_interval_obstacle,
)
from gateway.analysis.segmentation import scores as pixel_scores
from gateway.results.pairing import PredictionRow
from gateway.results.rows import CompletePair, KindRows
from gateway.results.stream import Numbers
from gateway.results.wording import pooled_obstacle_sentence
from shared.label_maps import unpack_counts
from shared.schemas.metrics import ConfusionPairs, SegmentationMetrics
from shared.scores import lost_labels


@dataclass(frozen=True, slots=True)
class Pooled:
    """Confusion counts of pixels (classes × classes + 1), and the number of distinct images that they come from."""

    counts: Integers
    images: int


@dataclass(frozen=True, slots=True)
class PooledPairs:
    """The pixels of the pairs in which both arms are accepted.

    Originals, null arms and sham arms count once for each of their pairs: otherwise images with many accepted edits
    would weigh more among counterfactuals than among the images that these are compared with. `groups` (groups × 2 × 3
    × classes) has the `class_pixels` of counterfactuals, and of the arms that they are compared with. `all_originals`
    counts every source image once, with or without pairs. `behind` (3 × classes × classes + 1) counts the pairs with
    pixels in a cell: of the original, of the null arm, of the counterfactual.
    """

    all_originals: Pooled
    original: Pooled
    null: Pooled
    counterfactual: Pooled
    groups: Integers
    behind: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelScores(Scores):
    """A segmenter's scores, the IoU of each class, with the `pooled` pixels of pairs behind them.

    `losing`, `losing_null`: whether a class detected on the original is lost on the counterfactual, or on the null arm.
    `null_group`: the group of each null arm.
    """

    classes: tuple[str, ...]
    pooled: PooledPairs
    losing: NDArray[np.bool_]
    null_group: Integers
    losing_null: NDArray[np.bool_]


class PixelDetail:
    """Implements `rows.Detail`."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes, self._pooled = tuple(classes), _PooledColumns(len(classes))
        self._losing, self._losing_null, self._null_group = array("b"), array("b"), array("q")

    def add(self, numbers: Numbers, original: PredictionRow | None, pairs: Sequence[CompletePair]) -> None:
        """As in `rows.Detail`."""
        for pair in pairs:
            self._losing.append(bool(lost_labels(pair.original.scores, pair.counterfactual.scores)))
        nulls = {pair.null.counterfactual_id: pair for pair in pairs}  # several edits share a null arm
        for pair in nulls.values():
            self._null_group.append(numbers.group)
            self._losing_null.append(bool(lost_labels(pair.original.scores, pair.null.scores)))
        self._pooled.add(numbers.group, original, [pair for pair in pairs if pair.edit.counted])

    def rows(self, scores: Scores) -> KindRows:
        """As in `rows.Detail`."""
        return KindRows(
            PixelScores(
                **{column.name: getattr(scores, column.name) for column in fields(scores)},
                classes=self._classes,
                pooled=self._pooled.pairs(),
                losing=np.asarray(self._losing).astype(bool),
                null_group=np.asarray(self._null_group),
                losing_null=np.asarray(self._losing_null).astype(bool),
            )
        )


class _PooledColumns:
    """Pooled pixels, gathered source image by source image; `classes` is their number."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._counts = np.zeros((3, classes, classes + 1), np.int64)
        self._behind = np.zeros((3, classes, classes + 1), np.int64)
        self._images = [0, 0, 0]
        self._all, self._sources = np.zeros((classes, classes + 1), np.int64), 0
        self._groups: defaultdict[int, Integers] = defaultdict(lambda: np.zeros((2, 3, classes), np.int64))

    def add(self, group: int, original: PredictionRow | None, pairs: Sequence[CompletePair]) -> None:
        """Add a source image, which belongs to a group: its prediction (None: it has none) and its pairs."""
        if original is not None and original.scores:
            self._all += self._unpack(original)
            self._sources += 1
        if not pairs:
            return
        unchanged = self._unpack(pairs[0].original)
        for pair in pairs:
            counterfactual, reference = self._unpack(pair.counterfactual), self._unpack(pair.reference)
            arms = np.stack([unchanged, self._unpack(pair.null), counterfactual])
            self._counts += arms
            self._behind += arms > 0
            self._groups[group] += np.stack([class_pixels(counterfactual), class_pixels(reference)])
        nulls = {pair.null.counterfactual_id for pair in pairs}  # None: the original
        for arm, images in enumerate((1, len(nulls), len(pairs))):
            self._images[arm] += images

    def pairs(self) -> PooledPairs:
        """All added pairs."""
        original, null, counterfactual = map(Pooled, self._counts, self._images)
        empty = np.zeros((0, 2, 3, self._classes), np.int64)
        groups = np.stack(list(self._groups.values())) if self._groups else empty
        every = Pooled(self._all, self._sources)
        return PooledPairs(every, original, null, counterfactual, groups, self._behind)

    def _unpack(self, row: PredictionRow) -> Integers:
        return unpack_counts(row.confusion, self._classes)


def segmentation_metrics(scores: PixelScores, colours: Sequence[str], seed: int) -> SegmentationMetrics:
    """The pooled figures, and the mean difference per source image with its interval. `seed`: the analysis's seed."""
    pooled = scores.pooled
    originals, nulls, counterfactuals = pooled.behind.tolist()
    original, null, counterfactual = (
        pixel_scores(arm.counts, arm.images) for arm in (pooled.original, pooled.null, pooled.counterfactual)
    )
    means = differences(scores, scores.whole).correct
    obstacle = pooled_interval_obstacle(pooled.groups)
    return SegmentationMetrics(
        classes=list(scores.classes),
        colours=list(colours),
        all_originals=pixel_scores(pooled.all_originals.counts, pooled.all_originals.images),
        originals=original,
        nulls=null,
        counterfactuals=counterfactual,
        difference=difference(counterfactual, null),
        delta_iou=float(means.mean()) if len(means) else None,
        interval=mean_interval(means, LEVEL, seed) if len(means) > 1 else None,
        delta_pooled_iou=pooled_difference(pooled.groups),
        pooled_interval=None if obstacle else pooled_interval(pooled.groups),
        no_pooled_interval=pooled_obstacle_sentence(obstacle, scores.classes) if obstacle else "",
        lost=clustered_rate(scores.losing, scores.cluster),
        lost_null=clustered_rate(scores.losing_null, scores.null_group),
        pairs=ConfusionPairs(originals=originals, nulls=nulls, counterfactuals=counterfactuals),
    )
