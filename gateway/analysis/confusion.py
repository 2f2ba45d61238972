"""Confusion matrices of a classifier: how often images of a class are predicted as each class, arm by arm.

A threshold of confidence: a prediction whose top probability lies below it counts as none, and is wrong.

No image is left out, so a threshold changes neither which pairs are compared nor how many. Taking only the images with
a confident prediction would select by an outcome that the edit itself changes, and differently in each arm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gateway.analysis.effects import Integers, Outcomes, Predictions, Ranks
from gateway.analysis.segmentation import normalise

NO_CLASS = -1  # the number of the predicted class
NO_RANK = 2**31  # beyond every k of acc@k


class Confusion(NamedTuple):
    """Counts of each arm: k classes of the reference × (m predicted classes, other classes, no prediction).

    `original_pairs`, `null_pairs`: counterfactuals by the prediction on their original, and on their null arm.
    """

    originals: Integers
    nulls: Integers
    counterfactuals: Integers
    original_pairs: Integers
    null_pairs: Integers


def confusion(outcomes: Outcomes, label: Integers, predicted_as: Integers, k: int, m: int) -> Confusion:
    """The confusion of the pairs that count. Each original and each null arm counts once.

    `label`: the row's class of the reference, 0 … k − 1, or −1 for a class without a row. `predicted_as`: by number of
    a predicted class, its place among the m columns, or m for any other.
    """
    rows = np.flatnonzero(label >= 0)
    if outcomes.counting is not None:
        rows = rows[outcomes.counting.pairs[rows]]
    sources = rows[np.unique(outcomes.source[rows], return_index=True)[1]]
    arms = rows[np.unique(outcomes.null_arm[rows], return_index=True)[1]]
    return Confusion(
        _counts(outcomes.ranks.original, sources, label, predicted_as, (k, m)),
        _counts(outcomes.ranks.null, arms, label, predicted_as, (k, m)),
        _counts(outcomes.ranks.counterfactual, rows, label, predicted_as, (k, m)),
        _counts(outcomes.ranks.original, rows, label, predicted_as, (k, m)),
        _counts(outcomes.ranks.null, rows, label, predicted_as, (k, m)),
    )


def _counts(
    predictions: Predictions, rows: Integers, label: Integers, predicted_as: Integers, shape: tuple[int, int]
) -> Integers:
    k, m = shape
    predicted = predictions.predicted[rows]
    place = np.full(len(rows), m + 1)
    place[predicted != NO_CLASS] = predicted_as[predicted[predicted != NO_CLASS]]
    cells = np.bincount(label[rows] * (m + 2) + place, minlength=k * (m + 2))
    return cells.reshape(k, m + 2).astype(np.int64)


def shares(counts: Integers) -> list[list[float]]:
    """The counts normalised by row; rows without images are 0."""
    return normalise(counts).tolist()  # type: ignore[no-any-return]


def at_confidence(outcomes: Outcomes, threshold: float) -> Outcomes:
    """The outcomes if the model gave no prediction below this top probability (0 … 1).

    Probabilities of the true class stay as they are. A prediction of unknown confidence counts as none above 0.
    """
    if threshold <= 0:
        return outcomes
    ranks = outcomes.ranks
    return Outcomes.of(
        Ranks(
            _confident(ranks.original, threshold),
            _confident(ranks.null, threshold),
            _confident(ranks.counterfactual, threshold),
            None if ranks.sham is None else _confident(ranks.sham, threshold),
        ),
        source=outcomes.source,
        ordinal=outcomes.ordinal,
        null_arm=outcomes.null_arm,
        cells=outcomes.cells,
        group=outcomes.group,
        counting=outcomes.counting,
        edit=outcomes.edit,
    )


def _confident(predictions: Predictions, threshold: float) -> Predictions:
    confidence = predictions.confidence
    confident = np.zeros(len(predictions.rank), bool) if confidence is None else confidence >= threshold
    return replace(
        predictions,
        rank=np.where(confident, predictions.rank, NO_RANK),
        predicted=np.where(confident, predictions.predicted, NO_CLASS),
    )
