"""What a classifier's figures need beside its scores: ranks, probabilities, predicted classes, phrases of edits."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields

import numpy as np

from gateway.analysis.effects import Integers, Outcomes, Predictions, Ranks, Scores
from gateway.results.originals import OriginalColumns
from gateway.results.pairing import PredictionRow, labels
from gateway.results.rows import CompletePair, KindRows
from gateway.results.stream import Numbers
from gateway.results.wording import PhraseColumns, PhrasePairs


class RankDetail:
    """Implements `rows.Detail`, 150 bytes for each pair."""

    def __init__(self) -> None:
        self._arms = [_PredictionColumns() for _ in range(3)]  # original, null arm, counterfactual
        self._reference: _PredictionColumns | None = None  # None: it is the null arm of all pairs so far
        self._codes: dict[str, int] = {}
        self._null_ordinal, self._edit, self._edits = array("q"), array("q"), 0
        self._phrases, self._originals = PhraseColumns(), OriginalColumns()

    def add(self, numbers: Numbers, original: PredictionRow | None, pairs: Sequence[CompletePair]) -> None:
        """As in `rows.Detail`."""
        for label in labels(original):
            assert original is not None
            self._originals.add(numbers.group, original.rank, label, original.predicted)
        edit_numbers: dict[PhrasePairs, int] = {}
        for pair in pairs:
            (label,) = pair.original.scores
            self._null_ordinal.append(-1 if pair.edit.null_ordinal is None else pair.edit.null_ordinal)
            if self._reference is None and pair.reference is not pair.null:
                self._reference = deepcopy(self._arms[1])
            if self._reference is not None:
                self._reference.add(pair.reference, self._codes)
            for arm, prediction in zip(self._arms, pair[1:4], strict=True):
                arm.add(prediction, self._codes)
            phrases = self._phrases.add(label, pair.edit.changes)
            self._edit.append(self._edits + edit_numbers.setdefault(phrases, len(edit_numbers)))
        self._edits += len(edit_numbers)

    def rows(self, scores: Scores) -> KindRows:
        """As in `rows.Detail`."""
        order = np.argsort(np.argsort(list(self._codes)))  # numbers classes by name, not by first appearance
        original, null, counterfactual = (arm.predictions(order) for arm in self._arms)
        reference = null if self._reference is None else self._reference.predictions(order)
        null_ordinal = np.asarray(self._null_ordinal)
        null_arm = scores.source * (null_ordinal.max(initial=0) + 2) + null_ordinal + 1
        outcomes = Outcomes(
            **{column.name: getattr(scores, column.name) for column in fields(scores)},
            ranks=Ranks(original, null, counterfactual, None if scores.sham is None else reference),
            null_arm=np.unique(null_arm, return_inverse=True)[1],
            edit=np.asarray(self._edit),
        )
        return KindRows(outcomes, self._originals.arrays(), self._phrases.phrases(), tuple(sorted(self._codes)))


class _PredictionColumns:
    """The predictions for one arm, 32 bytes each."""

    def __init__(self) -> None:
        self._p_truth, self._rank, self._predicted, self._confidence = array("d"), array("q"), array("q"), array("d")

    def add(self, prediction: PredictionRow, codes: dict[str, int]) -> None:
        """Add a prediction; a class that is new gets the next of the `codes`."""
        p_truth = prediction.confidence("")
        self._p_truth.append(float("nan") if p_truth is None else p_truth)
        self._rank.append(prediction.rank)
        self._predicted.append(codes.setdefault(prediction.predicted, len(codes)))
        self._confidence.append(prediction.probability)

    def predictions(self, order: Integers) -> Predictions:
        """All of them; `order` gives the number of a class by its code."""
        predicted = order[np.asarray(self._predicted)] if self._predicted else np.zeros(0, np.int64)
        return Predictions(np.asarray(self._p_truth), np.asarray(self._rank), predicted, np.asarray(self._confidence))
