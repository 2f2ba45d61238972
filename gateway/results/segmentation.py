"""The predictions of one segmenter for one method, as arrays for the analysis: pooled counts, and IoU by cell.

Memory: 24 bytes per counterfactual and class of its reference, 8 bytes for each of their cells, and pooled counts
(`gateway.results.pooled`).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.bounds import Refused
from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval
from gateway.analysis.effects import Differences, Estimand, Integers, Scores, Units
from gateway.analysis.segmentation import (
    difference,
    lost_classes,
    pooled_difference,
    pooled_interval,
    pooled_interval_obstacle,
    scores,
    with_mean,
)
from gateway.analysis.validity import Screened
from gateway.results.counting import CountingColumns
from gateway.results.pairing import CounterfactualRow, PredictionRow, Triple
from gateway.results.pooled import PooledColumns, PooledPair, PooledPairs
from gateway.results.screening import PairScores, ScreeningColumns
from gateway.results.second_scorer import SecondColumns
from gateway.results.stream import Numbers, SourceRows, cells_of
from gateway.results.wording import pooled_obstacle_sentence
from shared.schemas.effects import Cell
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.metrics import ConfusionPairs, SegmentationMetrics
from shared.schemas.results import Relation


@dataclass(frozen=True, slots=True)
class SegmentedRows:
    """`pooled` pixels of pairs, and `scores`: IoU of every class of each accepted counterfactual, and their mean.

    `losing`, `losing_null`: whether a class detected on the original is lost on the counterfactual, or on the null arm.
    `null_group`: the group of each null arm. `left_out`, `screened`, `refused` and `second` are as in
    `classification.ModelRows`.
    """

    classes: tuple[str, ...]
    pooled: PooledPairs
    scores: Scores
    losing: NDArray[np.bool_]
    null_group: Integers
    losing_null: NDArray[np.bool_]
    left_out: int
    screened: Mapping[Cell, Screened]
    refused: Mapping[Cell, Refused]
    second: SecondColumns


class SegmentedColumns:
    """Collects predictions, one source image at a time."""

    def __init__(self, relation: Relation, classes: Sequence[str]) -> None:
        self._relation = relation
        self._classes = tuple(classes)
        self._pooled = PooledColumns(len(classes))
        self._number, self._group, self._ordinal, self._null_group = (array("q") for _ in range(4))
        self._losing, self._losing_null = array("b"), array("b")
        self._image, self._whole = array("q"), array("q")
        self._original, self._null, self._counterfactual = array("d"), array("d"), array("d")
        self._reference, self._counting = array("d"), CountingColumns()
        self._cells: defaultdict[Cell, array[int]] = defaultdict(lambda: array("q"))
        self._screening, self._second = ScreeningColumns(), SecondColumns()
        self._left_out = 0

    def add(
        self,
        numbers: Numbers,
        rows: SourceRows,
        edits: Sequence[Triple[CounterfactualRow]],
        predictions: Mapping[str, PredictionRow],
    ) -> None:
        """Add the edits of one method of a source image, with one segmenter's predictions."""
        labels = rows.labels(predictions.get(rows.source.id), self._relation)
        null_ids: set[str] = set()
        pairs: list[PooledPair] = []
        for triple in edits:
            edit = triple.edit
            cells = {label: dict.fromkeys(cells_of(edit, label)) for label in labels}
            original, null, image, reference = triple.predictions(predictions)
            for label, members in cells.items():
                scores = PairScores(_score(image, label), _score(reference, label))
                self._screening.add(members, numbers.group, edit, scores)
                self._second.add(members, numbers, triple, scores.difference)
            if not edit.accepted:
                continue
            reference = reference if edit.comparable else null
            if not (original and null and image and original.overlaps and null.overlaps and image.overlaps) or not (
                reference and reference.overlaps
            ):
                self._left_out += 1
                continue
            null_id = triple.null.id if triple.null else triple.original
            if null_id not in null_ids:  # several edits share a null arm
                null_ids.add(null_id)
                self._add_null(numbers, original.overlaps, null.overlaps)
            if edit.counted:
                pairs.append(PooledPair(original, null, image, reference))
            self._add_edit(numbers, edit, original.overlaps, image.overlaps)
            compared = (with_mean(scored.overlaps) for scored in (null, image, reference) if scored.overlaps)
            self._compare(cells, *compared)
        self._pooled.add(numbers.group, predictions.get(rows.source.id), pairs)

    def _add_null(self, numbers: Numbers, original: Mapping[str, float], null: Mapping[str, float]) -> None:
        """Add a null arm, given the IoU by class on the original and on the null arm."""
        self._null_group.append(numbers.group)
        self._losing_null.append(bool(lost_classes(original, null)))

    def _add_edit(
        self, numbers: Numbers, edit: CounterfactualRow, original: Mapping[str, float], image: Mapping[str, float]
    ) -> None:
        """Add the row of an edit, given the IoU by class on the original and on the edited image."""
        self._losing.append(bool(lost_classes(original, image)))
        self._number.append(numbers.source)
        self._group.append(numbers.group)
        self._ordinal.append(edit.ordinal)
        self._original.append(with_mean(original)[ALL_CLASSES])
        self._counting.add(edit)

    def _compare(
        self,
        cells: Mapping[str, Iterable[Cell]],
        null: Mapping[str, float],
        counterfactual: Mapping[str, float],
        reference: Mapping[str, float],
    ) -> None:
        for label, members in cells.items():
            for cell in members:
                self._cells[cell].append(len(self._image))
            if label == ALL_CLASSES:
                self._whole.append(len(self._image))
            self._image.append(len(self._number) - 1)
            self._null.append(null[label])
            self._counterfactual.append(counterfactual[label])
            self._reference.append(reference[label])

    def rows(self) -> SegmentedRows:
        """All added rows, as arrays."""
        return SegmentedRows(
            classes=self._classes,
            pooled=self._pooled.pairs(),
            scores=Scores(
                source=np.asarray(self._number),
                group=np.asarray(self._group),
                ordinal=np.asarray(self._ordinal),
                original=np.asarray(self._original),
                image=np.asarray(self._image),
                null=np.asarray(self._null),
                counterfactual=np.asarray(self._counterfactual),
                whole=np.asarray(self._whole),
                cells={cell: np.asarray(rows) for cell, rows in self._cells.items()},
                sham=np.asarray(self._reference) if self._counting.shams else None,
                counting=self._counting.masks(),
            ),
            losing=np.asarray(self._losing).astype(bool),
            null_group=np.asarray(self._null_group),
            losing_null=np.asarray(self._losing_null).astype(bool),
            left_out=self._left_out,
            screened=self._screening.screened(),
            refused=self._screening.refused(),
            second=self._second,
        )


def _score(row: PredictionRow | None, label: str) -> float | None:
    """The IoU of a class (or of all) on an image."""
    return with_mean(row.overlaps)[label] if row and row.overlaps else None


def by_source(scores: Scores, rows: Integers, estimand: Estimand = "pairs") -> Differences:
    """Per group the mean difference in IoU of those of `rows` that the estimand takes; probabilities are not known."""
    rows = scores.rows_in(rows, estimand)
    units = Units.of(scores.source[scores.image[rows]], scores.cluster[scores.image[rows]])
    means = units.means(scores.counterfactual[rows] - scores.reference(estimand)[rows])
    unknown = np.full(len(means), np.nan)
    return Differences(units.group, means, unknown, len(rows), units.sources, sizes=units.rows_of_group)


def segmentation_metrics(rows: SegmentedRows, colours: Sequence[str], seed: int) -> SegmentationMetrics:
    """The pooled figures, and the mean difference per source image with its interval. `seed`: the analysis's seed."""
    pooled = rows.pooled
    originals, nulls, counterfactuals = pooled.behind.tolist()
    original, null, counterfactual = (
        scores(arm.counts, arm.images) for arm in (pooled.original, pooled.null, pooled.counterfactual)
    )
    means = by_source(rows.scores, rows.scores.whole).correct
    obstacle = pooled_interval_obstacle(pooled.groups)
    return SegmentationMetrics(
        classes=list(rows.classes),
        colours=list(colours),
        all_originals=scores(pooled.all_originals.counts, pooled.all_originals.images),
        originals=original,
        nulls=null,
        counterfactuals=counterfactual,
        difference=difference(counterfactual, null),
        delta_iou=float(means.mean()) if len(means) else None,
        interval=mean_interval(means, LEVEL, seed) if len(means) > 1 else None,
        delta_pooled_iou=pooled_difference(pooled.groups),
        pooled_interval=None if obstacle else pooled_interval(pooled.groups),
        no_pooled_interval=pooled_obstacle_sentence(obstacle, rows.classes) if obstacle else "",
        lost=clustered_rate(rows.losing, rows.scores.cluster),
        lost_null=clustered_rate(rows.losing_null, rows.null_group),
        pairs=ConfusionPairs(originals=originals, nulls=nulls, counterfactuals=counterfactuals),
    )
