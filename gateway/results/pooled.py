"""Pixels of the pairs of one segmenter and one method, pooled: confusion counts by arm, pixels of classes by group.

Memory: 48 bytes per group and class of the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gateway.analysis.effects import Integers
from gateway.analysis.segmentation import class_pixels
from gateway.results.pairing import PredictionRow
from shared.label_maps import unpack_counts


class PooledPair(NamedTuple):
    """The predictions for the images of a pair, as in `pairing.Compared`; none is missing."""

    original: PredictionRow
    null: PredictionRow
    counterfactual: PredictionRow
    reference: PredictionRow


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


class PooledColumns:
    """Pooled pixels, gathered source image by source image; `classes` is their number."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._counts = np.zeros((3, classes, classes + 1), np.int64)
        self._behind = np.zeros((3, classes, classes + 1), np.int64)
        self._images = [0, 0, 0]
        self._all, self._sources = np.zeros((classes, classes + 1), np.int64), 0
        self._groups: defaultdict[int, Integers] = defaultdict(lambda: np.zeros((2, 3, classes), np.int64))

    def add(self, group: int, original: PredictionRow | None, pairs: Sequence[PooledPair]) -> None:
        """Add a source image, which belongs to a group: its prediction (None: it has none) and its pairs."""
        if original is not None and original.confusion:
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
        return unpack_counts(row.confusion or [], self._classes)
