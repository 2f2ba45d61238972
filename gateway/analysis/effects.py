"""Effects in cells: per source image, a model's scores on counterfactuals minus those on their null arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

    `null` is the row's own null arm, or its original where the method has none; `source` numbers source images from 0;
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


@dataclass(frozen=True, slots=True)
class Scores:
    """A model's scores on the accepted counterfactuals of one method, in 0 … 1.

    `source`, `ordinal` and `original` are of m counterfactuals: their source image, their order in it, and the score of
    that. The n rows (`null`, `counterfactual`) score a whole counterfactual, or a class in it: `image` is its place
    among the m. Of classifiers a score is 1 where they are right and 0 elsewhere, a row for each counterfactual; of
    segmenters it is an IoU, a row for each class of the reference and one for their mean. `whole` and `cells` name
    rows.
    """

    source: Integers
    ordinal: Integers
    original: Floats
    image: Integers
    null: Floats
    counterfactual: Floats
    whole: Integers
    cells: Mapping[Cell, Integers]


@dataclass(frozen=True, slots=True)
class Differences:
    """Per source image of a cell, the mean over its counterfactuals of counterfactual − null arm, in −1 … 1.

    Arrays of one length m, in the order of `source` (ascending); `counterfactuals` is how many went into them.
    `null_accuracy`: how often the model is right on their null arms (0 … 1), None of segmenters.
    """

    source: Integers
    correct: Floats
    p_truth: Floats
    counterfactuals: int
    null_accuracy: float | None = None


def differences(outcomes: Outcomes, rows: Integers) -> Differences:
    """Per-source differences of the counterfactuals at `rows`."""
    source, place, counts = np.unique(outcomes.source[rows], return_inverse=True, return_counts=True)
    correct = outcomes.counterfactual.correct[rows].astype(float) - outcomes.null.correct[rows]
    p_truth = outcomes.counterfactual.p_truth[rows] - outcomes.null.p_truth[rows]
    return Differences(
        source,
        np.bincount(place, correct, len(source)) / counts,
        np.bincount(place, p_truth, len(source)) / counts,
        len(rows),
        float(outcomes.null.correct[rows].mean()) if len(rows) else None,
    )
