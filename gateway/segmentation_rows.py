"""What one segmenter said of what one method made, as the analysis computes on it: pooled counts, and IoU by cell.

Memory: three matrices of counts, and for each counterfactual and class of its reference 16 bytes for each of its cells.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval
from gateway.analysis.effects import Differences, Floats, Integers
from gateway.analysis.segmentation import difference, lost, scores, unpacked, with_mean
from gateway.analysis.validity import Screened
from gateway.job_rows import CounterfactualRow, PredictionRow, SourceRows, cells_of
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import Cell, Relation, SegmentationMetrics


@dataclass(frozen=True, slots=True)
class Pooled:
    """Confusion counts of some images, pixels added, and how many images they are."""

    counts: Integers
    images: int


@dataclass(frozen=True, slots=True)
class SegmentedRows:
    """`deltas`: per accepted counterfactual (n rows) image mIoU less the null arm's, `source` its source image.

    `losing` and `losing_null` say of n counterfactuals, and of the m null arms (`null_source`), whether a class that
    was found on the original is not found on them. `left_out` and `screened` are as in `outcomes.ModelRows`.
    """

    classes: tuple[str, ...]
    original: Pooled
    null: Pooled
    counterfactual: Pooled
    source: Integers
    deltas: Floats
    losing: NDArray[np.bool_]
    null_source: Integers
    losing_null: NDArray[np.bool_]
    cells: Mapping[Cell, Differences]
    left_out: int
    screened: Mapping[Cell, Screened]


class SegmentedColumns:
    """Takes in one source image after the other."""

    def __init__(self, relation: Relation, classes: Sequence[str]) -> None:
        self._relation = relation
        self._classes = tuple(classes)
        size = (len(classes), len(classes) + 1)
        self._counts = [np.zeros(size, np.int64) for _ in range(3)]  # of originals, null arms, counterfactuals
        self._images = [0, 0, 0]
        self._number, self._null_number = array("q"), array("q")
        self._losing, self._losing_null = array("b"), array("b")
        self._cells: defaultdict[Cell, tuple[array[int], array[float]]] = defaultdict(lambda: (array("q"), array("d")))
        self._screened: defaultdict[Cell, tuple[array[int], array[int]]] = defaultdict(lambda: (array("q"), array("b")))
        self._deltas = array("d")
        self._left_out = 0

    def add(self, number: int, rows: SourceRows, made: list[CounterfactualRow], said: dict[str, PredictionRow]) -> None:
        """Take in one source image, `made` being what the method made of it."""
        original = said.get(rows.source.id)
        labels = rows.labels(original, self._relation)
        ids = {row.ordinal: row.id for row in made}
        nulls: set[str] = set()
        counted = False
        for row in made:
            if row.arm != "edit":
                continue
            cells = [cell for label in labels for cell in dict.fromkeys(cells_of(row, label))]
            if row.rendered:
                for cell in cells:
                    self._screened[cell][0].append(number)
                    self._screened[cell][1].append(row.accepted)
            if not row.accepted:
                continue
            null_id = row.source if row.null_ordinal is None else ids.get(row.null_ordinal, "")
            null, seen = said.get(null_id), said.get(row.id)
            if not (original and null and seen and original.overlaps and null.overlaps and seen.overlaps):
                self._left_out += 1
                continue
            if not counted:
                self._count(0, original)
                counted = True
            if null_id not in nulls:
                nulls.add(null_id)
                self._count(1, null)
                self._null_number.append(number)
                self._losing_null.append(bool(lost(original.overlaps, null.overlaps)))
            self._count(2, seen)
            self._losing.append(bool(lost(original.overlaps, seen.overlaps)))
            self._compare(number, cells, with_mean(null.overlaps), with_mean(seen.overlaps))

    def _count(self, which: int, row: PredictionRow) -> None:
        self._counts[which] += unpacked(row.confusion or [], len(self._classes))
        self._images[which] += 1

    def _compare(
        self, number: int, cells: Sequence[Cell], null: Mapping[str, float], seen: Mapping[str, float]
    ) -> None:
        self._number.append(number)
        self._deltas.append(seen[ALL_CLASSES] - null[ALL_CLASSES])
        for cell in cells:
            numbers, deltas = self._cells[cell]
            numbers.append(number)
            deltas.append(seen[cell.label] - null[cell.label])

    def rows(self) -> SegmentedRows:
        """What was taken in."""
        original, null, counterfactual = (
            Pooled(counts, images) for counts, images in zip(self._counts, self._images, strict=True)
        )
        return SegmentedRows(
            classes=self._classes,
            original=original,
            null=null,
            counterfactual=counterfactual,
            source=np.asarray(self._number),
            deltas=np.asarray(self._deltas),
            losing=np.asarray(self._losing).astype(bool),
            null_source=np.asarray(self._null_number),
            losing_null=np.asarray(self._losing_null).astype(bool),
            cells={cell: by_source(np.asarray(one), np.asarray(other)) for cell, (one, other) in self._cells.items()},
            left_out=self._left_out,
            screened={
                cell: Screened(np.asarray(numbers), np.asarray(verdicts).astype(bool))
                for cell, (numbers, verdicts) in self._screened.items()
            },
        )


def by_source(source: Integers, deltas: Floats) -> Differences:
    """Per source image the mean of its counterfactuals' differences in IoU; probabilities are not known."""
    sources, place, counts = np.unique(source, return_inverse=True, return_counts=True)
    means = np.bincount(place, deltas, len(sources)) / counts
    return Differences(sources, means, np.full(len(sources), np.nan), len(source))


def segmentation_metrics(rows: SegmentedRows, colours: Sequence[str], seed: int) -> SegmentationMetrics:
    """The pooled figures, and the mean difference per source image with its interval; `seed` is the analysis's."""
    original, null, counterfactual = (
        scores(pooled.counts, pooled.images) for pooled in (rows.original, rows.null, rows.counterfactual)
    )
    means = by_source(rows.source, rows.deltas).correct if len(rows.source) else np.zeros(0)
    return SegmentationMetrics(
        classes=list(rows.classes),
        colours=list(colours),
        originals=original,
        nulls=null,
        counterfactuals=counterfactual,
        difference=difference(counterfactual, null),
        delta_iou=float(means.mean()) if len(means) else None,
        interval=mean_interval(means, LEVEL, seed) if len(means) > 1 else None,
        lost=clustered_rate(rows.losing, rows.source),
        lost_null=clustered_rate(rows.losing_null, rows.null_source),
    )
