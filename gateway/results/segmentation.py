"""What one segmenter said of what one method made, as the analysis computes on it: pooled counts, and IoU by cell.

Memory: three matrices of counts, and for each counterfactual and class of its reference 24 bytes, and 8 for each cell.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval
from gateway.analysis.effects import Differences, Integers, Scores
from gateway.analysis.segmentation import difference, lost, scores, with_mean
from gateway.analysis.validity import Screened
from gateway.results.stream import CounterfactualRow, PredictionRow, SourceRows, cells_of
from shared.label_maps import unpack_counts
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import Cell, Relation, SegmentationMetrics


@dataclass(frozen=True, slots=True)
class Pooled:
    """Confusion counts of some images, pixels added, and how many images they are."""

    counts: Integers
    images: int


@dataclass(frozen=True, slots=True)
class SegmentedRows:
    """Pooled counts, and `scores`: IoU of every class of each accepted counterfactual, and their mean.

    `losing` and `losing_null` say of these, and of the null arms (`null_source`), whether a class that was found on the
    original is not found on them. `left_out` and `screened` are as in `outcomes.ModelRows`.
    """

    classes: tuple[str, ...]
    original: Pooled
    null: Pooled
    counterfactual: Pooled
    scores: Scores
    losing: NDArray[np.bool_]
    null_source: Integers
    losing_null: NDArray[np.bool_]
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
        self._number, self._ordinal, self._null_number = array("q"), array("q"), array("q")
        self._losing, self._losing_null = array("b"), array("b")
        self._image, self._whole = array("q"), array("q")
        self._original, self._null, self._seen = array("d"), array("d"), array("d")
        self._cells: defaultdict[Cell, array[int]] = defaultdict(lambda: array("q"))
        self._screened: defaultdict[Cell, tuple[array[int], array[int]]] = defaultdict(lambda: (array("q"), array("b")))
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
            cells = {label: dict.fromkeys(cells_of(row, label)) for label in labels}
            if row.rendered:
                for cell in (cell for one in cells.values() for cell in one):
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
            self._number.append(number)
            self._ordinal.append(row.ordinal)
            self._original.append(with_mean(original.overlaps)[ALL_CLASSES])
            self._compare(cells, with_mean(null.overlaps), with_mean(seen.overlaps))

    def _count(self, which: int, row: PredictionRow) -> None:
        self._counts[which] += unpack_counts(row.confusion or [], len(self._classes))
        self._images[which] += 1

    def _compare(
        self, cells: Mapping[str, Iterable[Cell]], null: Mapping[str, float], seen: Mapping[str, float]
    ) -> None:
        for label, members in cells.items():
            for cell in members:
                self._cells[cell].append(len(self._image))
            if label == ALL_CLASSES:
                self._whole.append(len(self._image))
            self._image.append(len(self._number) - 1)
            self._null.append(null[label])
            self._seen.append(seen[label])

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
            scores=Scores(
                source=np.asarray(self._number),
                ordinal=np.asarray(self._ordinal),
                original=np.asarray(self._original),
                image=np.asarray(self._image),
                null=np.asarray(self._null),
                counterfactual=np.asarray(self._seen),
                whole=np.asarray(self._whole),
                cells={cell: np.asarray(rows) for cell, rows in self._cells.items()},
            ),
            losing=np.asarray(self._losing).astype(bool),
            null_source=np.asarray(self._null_number),
            losing_null=np.asarray(self._losing_null).astype(bool),
            left_out=self._left_out,
            screened={
                cell: Screened(np.asarray(numbers), np.asarray(verdicts).astype(bool))
                for cell, (numbers, verdicts) in self._screened.items()
            },
        )


def by_source(scores: Scores, rows: Integers) -> Differences:
    """Per source image the mean of its counterfactuals' differences in IoU at `rows`; probabilities are not known."""
    source = scores.source[scores.image[rows]]
    sources, place, counts = np.unique(source, return_inverse=True, return_counts=True)
    means = np.bincount(place, scores.counterfactual[rows] - scores.null[rows], len(sources)) / counts
    return Differences(sources, means, np.full(len(sources), np.nan), len(rows))


def segmentation_metrics(rows: SegmentedRows, colours: Sequence[str], seed: int) -> SegmentationMetrics:
    """The pooled figures, and the mean difference per source image with its interval; `seed` is the analysis's."""
    original, null, counterfactual = (
        scores(pooled.counts, pooled.images) for pooled in (rows.original, rows.null, rows.counterfactual)
    )
    means = by_source(rows.scores, rows.scores.whole).correct
    return SegmentationMetrics(
        classes=list(rows.classes),
        colours=list(colours),
        originals=original,
        nulls=null,
        counterfactuals=counterfactual,
        difference=difference(counterfactual, null),
        delta_iou=float(means.mean()) if len(means) else None,
        interval=mean_interval(means, LEVEL, seed) if len(means) > 1 else None,
        lost=clustered_rate(rows.losing, rows.scores.source),
        lost_null=clustered_rate(rows.losing_null, rows.null_source),
    )
