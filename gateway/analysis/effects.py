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
    """One model's predictions for n images, reduced to what the metrics need (arrays of length n).

    `p_truth`: probability of the truth, in 0 … 1, whatever its rank; NaN where it is not known. `rank`: place of the
    truth, 1 = correct. `predicted`: the most probable class, as a number that is the same in every array of the job.
    """

    p_truth: Floats
    rank: Integers
    predicted: Integers

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether the truth came first."""
        return np.asarray(self.rank == 1)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One model's predictions for the accepted counterfactuals of one method: one row each (n rows).

    `null` is the row's own null arm, or its original where the method has none; `source` numbers source images from 0,
    `group` the groups that they belong to (None: each is its own), such as the frames of a sequence;
    `ordinal` orders the counterfactuals of a source; `null_arm` numbers null arms, since siblings may share one.
    `cells` names the rows of each cell; a counterfactual with several changes is in several cells. Without ground
    truth the truth is the class predicted on the original.
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
        """What is independent of one another: the group of each row, or its source image."""
        return self.source if self.group is None else self.group


@dataclass(frozen=True, slots=True)
class Scores:
    """A model's scores on the accepted counterfactuals of one method, in 0 … 1.

    `source`, `group`, `ordinal` and `original` are of m counterfactuals: their source image, its group (None: each is
    its own), their order in the image, and the score of that. The n rows (`null`, `counterfactual`) score a whole
    counterfactual, or a class in it: `image` is its place among the m. Of classifiers a score is 1 where they are right
    and 0 elsewhere, a row for each counterfactual; of segmenters it is an IoU, a row for each class of the reference
    and one for their mean. `whole` and `cells` name rows.
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
        """What is independent of one another: the group of each counterfactual, or its source image."""
        return self.source if self.group is None else self.group


@dataclass(frozen=True, slots=True)
class Differences:
    """Per group of source images of a cell, the mean of counterfactual − null arm, in −1 … 1.

    Means are over the counterfactuals of a source image, then over the source images of a group; most often a group is
    one source image. Arrays of one length m, in the order of `group` (ascending); `sources`
    (None: one in each group) and `counterfactuals` are how many went into them. `null_accuracy`: how often the model is
    right on their null arms (0 … 1), None of segmenters.
    """

    group: Integers
    correct: Floats
    p_truth: Floats
    counterfactuals: int
    sources: int | None = None
    null_accuracy: float | None = None


class Units(NamedTuple):
    """n rows by source image and group: averages over the rows of a source image, then over those of a group.

    `group`: the distinct groups, ascending. `source_of_row` and `group_of_source` are places from 0.
    """

    group: Integers
    sources: int
    source_of_row: Integers
    rows_of_source: Integers
    group_of_source: Integers

    @classmethod
    def of(cls, source: Integers, group: Integers) -> Units:
        """The units of rows whose source images and groups these are."""
        _, first, place, counts = np.unique(source, return_index=True, return_inverse=True, return_counts=True)
        groups, group_place = np.unique(group[first], return_inverse=True)
        return cls(groups, len(counts), place, counts, group_place)

    def means(self, values: Floats) -> Floats:
        """The mean of n values in each group, in the order of `group`."""
        of_source = np.bincount(self.source_of_row, values, self.sources) / self.rows_of_source
        of_group = np.bincount(self.group_of_source, of_source, len(self.group))
        return np.asarray(of_group / np.bincount(self.group_of_source, minlength=len(self.group)))


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
