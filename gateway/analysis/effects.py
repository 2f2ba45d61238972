"""Effects in cells: per source image, a model's scores on counterfactuals minus those on their null arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.schemas.results import Cell

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Predictions:
    """One model's predictions for n images, as arrays of length n.

    `p_truth`: probability of the true class, in 0 … 1; NaN if unknown. `rank`: rank of the true class, 1 = correct.
    `predicted`: the number of the most probable class. All arrays of a job number classes alike.
    """

    p_truth: Floats
    rank: Integers
    predicted: Integers

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the true class has rank 1."""
        return np.asarray(self.rank == 1)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One model's predictions for the accepted counterfactuals of one method: one row each (n rows).

    `null` is the row's null arm, or its original if the method has no null arms. `source` numbers source images from 0.
    `group` numbers their groups, such as the frames of a sequence (None: every source image is its own group).
    `ordinal` orders the counterfactuals of a source image. `null_arm` numbers null arms; siblings may share one.
    `cells` maps each cell to its rows; a counterfactual with several changes is in several cells. Without ground truth
    the true class is the class predicted on the original.
    """

    source: Integers
    ordinal: Integers
    null_arm: Integers
    original: Predictions
    null: Predictions
    counterfactual: Predictions
    cells: Mapping[Cell, Integers]
    group: Integers | None = None

    @property
    def cluster(self) -> Integers:
        """The independent unit of each row: its group, or its source image."""
        return self.source if self.group is None else self.group


@dataclass(frozen=True, slots=True)
class Scores:
    """A model's scores on the accepted counterfactuals of one method, in 0 … 1.

    `source`, `group`, `ordinal` and `original` describe m counterfactuals: the source image, its group (None: every
    source image is its own group), the order within the source image, and the score on the original. `null` and
    `counterfactual` have n rows; `image` is the index of a row's counterfactual among the m. A classifier has one row
    per counterfactual, with score 1 if it is right and 0 if not. A segmenter has one row per class of the reference and
    one for their mean; a score is an IoU. `whole` and `cells` are indices of rows.
    """

    source: Integers
    ordinal: Integers
    original: Floats
    image: Integers
    null: Floats
    counterfactual: Floats
    whole: Integers
    cells: Mapping[Cell, Integers]
    group: Integers | None = None

    @property
    def cluster(self) -> Integers:
        """The independent unit of each counterfactual: its group, or its source image."""
        return self.source if self.group is None else self.group


@dataclass(frozen=True, slots=True)
class Differences:
    """Per group of source images of a cell, the mean of counterfactual − null arm, in −1 … 1.

    Means are over the counterfactuals of a source image, then over the source images of a group; most often a group is
    one source image. The arrays have one length and are ordered by `group` (ascending). `sources` (None: one in each
    group) and `counterfactuals` are the numbers of averaged images. `null_accuracy`: the model's accuracy on the null
    arms (0 … 1), None for segmenters.
    """

    group: Integers
    correct: Floats
    p_truth: Floats
    counterfactuals: int
    sources: int | None = None
    null_accuracy: float | None = None


class Units(NamedTuple):
    """n rows by source image and group: averages over the rows of a source image, then over those of a group.

    `group`: the distinct groups, ascending. `source_of_row` and `group_of_source` are indices from 0.
    """

    group: Integers
    sources: int
    source_of_row: Integers
    rows_of_source: Integers
    group_of_source: Integers

    @classmethod
    def of(cls, source: Integers, group: Integers) -> Units:
        """The units of n rows, given the source image and the group of each."""
        _, first, index, counts = np.unique(source, return_index=True, return_inverse=True, return_counts=True)
        groups, group_index = np.unique(group[first], return_inverse=True)
        return cls(groups, len(counts), index, counts, group_index)

    def means(self, values: Floats) -> Floats:
        """The mean of n values in each group, in the order of `group`."""
        source_means = np.bincount(self.source_of_row, values, self.sources) / self.rows_of_source
        group_sums = np.bincount(self.group_of_source, source_means, len(self.group))
        return np.asarray(group_sums / np.bincount(self.group_of_source, minlength=len(self.group)))


def differences(outcomes: Outcomes, rows: Integers) -> Differences:
    """Per-group differences of the counterfactuals at `rows`."""
    units = Units.of(outcomes.source[rows], outcomes.cluster[rows])
    correct = outcomes.counterfactual.correct[rows].astype(float) - outcomes.null.correct[rows]
    p_truth = outcomes.counterfactual.p_truth[rows] - outcomes.null.p_truth[rows]
    return Differences(
        units.group,
        units.means(correct),
        units.means(p_truth),
        len(rows),
        units.sources,
        float(outcomes.null.correct[rows].mean()) if len(rows) else None,
    )
