"""A threshold of confidence: a prediction whose top probability lies below it counts as none, and is wrong.

No image is left out, so a threshold changes neither which pairs are compared nor how many. Taking only the images with
a confident prediction would select by an outcome that the edit itself changes, and differently in each arm.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gateway.analysis.effects import Outcomes, Predictions, Ranks

NO_CLASS = -1  # the number of the predicted class
NO_RANK = 2**31  # beyond every k of acc@k


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
