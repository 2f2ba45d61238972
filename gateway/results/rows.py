"""The scores of one model under one method as arrays for the analysis, the same for every kind of task.

Memory: about 40 bytes for each accepted counterfactual, 40 for each of its labels, 8 for each of their cells, and what
the kind keeps besides (`Detail`).
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gateway.analysis.bounds import Refused, possible_difference
from gateway.analysis.effects import Counting, Differences, Scores, Units
from gateway.analysis.validity import Screened
from gateway.kinds.rows import CompletePair, CounterfactualRow, PredictionRow, SourceNumbers, labels
from gateway.kinds.task_kind import Detail, KindRows
from gateway.results.pairing import Compared, Triple
from gateway.results.stream import SourceRows, cells_of
from shared.schemas.effects import Cell
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import ARMS, Arm
from shared.schemas.scores import whole


class ModelRows(NamedTuple):
    """The predictions of one model under test for the counterfactuals of one method.

    `own` has the scores of the accepted counterfactuals with their null arms, sham arms and originals. `left_out`: no
    ground truth (in a job that has some), a class that the model does not know, a prediction missing, or one without an
    answer: of these `unanswered` counts the originals, null arms and counterfactuals. `screened` has the rendered edits
    of each cell, accepted or not; `refused` those whose pairs do not count, `second` the pairs that the second scorer
    accepts.
    """

    own: KindRows
    left_out: int
    unanswered: dict[Arm, int]
    screened: dict[Cell, Screened]
    refused: dict[Cell, Refused]
    second: SecondColumns

    @property
    def scores(self) -> Scores:
        """The scores of all accepted counterfactuals."""
        return self.own.scores


class ScoreColumns:
    """Collects the scores of one model for the counterfactuals of one method, source image by source image."""

    def __init__(self, detail: Detail) -> None:
        self._detail, self._left_out = detail, 0
        self._unanswered = Counter[Arm]()
        self._number, self._group, self._ordinal, self._original = array("q"), array("q"), array("q"), array("d")
        self._image, self._whole = array("q"), array("q")
        self._null, self._counterfactual, self._reference = array("d"), array("d"), array("d")
        self._cells: defaultdict[Cell, array[int]] = defaultdict(lambda: array("q"))
        self._counting, self._screening, self._second = _CountingColumns(), _ScreeningColumns(), SecondColumns()

    def add(
        self,
        numbers: SourceNumbers,
        rows: SourceRows,
        edits: Sequence[Triple[CounterfactualRow]],
        predictions: Mapping[str, PredictionRow],
    ) -> None:
        """Add the edits of one method of a source image, with one model's predictions."""
        original = predictions.get(rows.source.id)
        scored, pairs, unscored = labels(original), [], []
        for triple in edits:
            edit, compared = triple.edit, triple.compare(predictions)
            there = labels(compared.original)
            cells = {label: dict.fromkeys(cells_of(edit, label)) for label in scored}
            for label, members in cells.items():
                shown = compared if label in there else triple.predictions(predictions)
                scores = _PairScores(_score(shown.counterfactual, label), _score(shown.reference, label))
                self._screening.add(members, numbers.group, edit, scores, gone=label not in there)
                if label in there:
                    self._second.add(members, numbers, triple, scores.difference)
            if not edit.accepted:
                continue
            pair = _complete(edit, compared)
            if pair and all(prediction.scores for prediction in pair[1:]):
                pairs.append(pair)
                self._append(numbers, pair, {label: cells[label] for label in labels(pair.original)})
            else:
                unanswered = list(_unanswered(pair))
                self._left_out += bool(there or not scored or unanswered)
                unscored += [] if pair is None else [pair]
                self._unanswered.update(unanswered)
        self._detail.add(numbers, original, pairs, unscored)

    def _append(self, numbers: SourceNumbers, pair: CompletePair, cells: Mapping[str, Iterable[Cell]]) -> None:
        self._number.append(numbers.source)
        self._group.append(numbers.group)
        self._ordinal.append(pair.edit.ordinal)
        self._original.append(whole(pair.original.scores))
        self._counting.add(pair.edit)
        for label, members in cells.items():
            row = len(self._image)
            for cell in members:
                self._cells[cell].append(row)
            if label == ALL_CLASSES or len(cells) == 1:
                self._whole.append(row)
            self._image.append(len(self._number) - 1)
            self._null.append(pair.null.scores[label])
            self._counterfactual.append(pair.counterfactual.scores[label])
            self._reference.append(pair.reference.scores[label])

    def rows(self) -> ModelRows:
        """All added rows, as arrays."""
        scores = Scores(
            source=np.asarray(self._number),
            group=np.asarray(self._group),
            ordinal=np.asarray(self._ordinal),
            original=np.asarray(self._original),
            image=np.asarray(self._image),
            null=np.asarray(self._null),
            counterfactual=np.asarray(self._counterfactual),
            whole=np.asarray(self._whole),
            cells={cell: np.asarray(members) for cell, members in self._cells.items()},
            sham=np.asarray(self._reference) if self._counting.shams else None,
            counting=self._counting.masks(),
        )
        screened, refused = self._screening.screened(), self._screening.refused()
        own, unanswered = self._detail.rows(scores), dict(self._unanswered)
        return ModelRows(own, self._left_out, unanswered, screened, refused, self._second)


def _score(prediction: PredictionRow | None, label: str) -> float | None:
    return None if prediction is None else prediction.scores.get(label)


def _unanswered(pair: CompletePair | None) -> Iterator[Arm]:
    """The arms of a pair for which the model was asked and gave no answer."""
    for arm, prediction in zip(ARMS, pair[1:4] if pair else (), strict=False):
        if "unanswered" in prediction.detail:
            yield arm


def _complete(edit: CounterfactualRow, compared: Compared[PredictionRow]) -> CompletePair | None:
    original, null, image = compared.original, compared.null, compared.counterfactual
    reference = compared.reference if edit.comparable else null
    if not (original and null and image and reference):
        return None
    return CompletePair(edit, original, null, image, reference)


class _CountingColumns:
    """Which of the accepted edits each estimand takes, edit by edit."""

    def __init__(self) -> None:
        self.shams = False
        self._pairs, self._edits, self._null = array("b"), array("b"), array("b")

    def add(self, edit: CounterfactualRow) -> None:
        """Take in an accepted edit."""
        self.shams = self.shams or edit.sham_ordinal is not None
        self._pairs.append(edit.counted)
        self._edits.append(edit.comparable)
        self._null.append(not edit.null_check)

    def masks(self) -> Counting:
        """All that was taken in, as arrays."""
        pairs, edits, null = (np.asarray(mask).astype(bool) for mask in (self._pairs, self._edits, self._null))
        return Counting(pairs, edits, null if self.shams else None)


class _PairScores(NamedTuple):
    """A model's scores, 0 … 1, on an edit's image and on its reference arm; None where one is not known."""

    image: float | None
    reference: float | None

    @property
    def difference(self) -> float | None:
        """The image's score less the arm's; None if one is not known."""
        return None if self.image is None or self.reference is None else self.image - self.reference


class _ScreeningColumns:
    """The rendered edits of each cell by verdict, and what the model did on those that do not count."""

    def __init__(self) -> None:
        self._screened: defaultdict[Cell, tuple[array[int], array[int]]] = defaultdict(lambda: (array("q"), array("b")))
        self._refused: defaultdict[Cell, tuple[array[int], array[float], array[float], array[int]]] = defaultdict(
            lambda: (array("q"), array("d"), array("d"), array("b"))
        )

    def add(
        self, cells: Iterable[Cell], group: int, edit: CounterfactualRow, scores: _PairScores, *, gone: bool
    ) -> None:
        """Add an edit to its cells. A refused arm's score says nothing of a valid arm, so it counts as not known.

        `gone`: no object of the cells' class is in both arms, and the pair does not count: as if the edit were refused,
        or its arm if they are in the edit's image.
        """
        if not edit.rendered:
            return
        accepted = edit.accepted and not (gone and scores.image is None)
        low, high = possible_difference(scores.image, None if edit.lost_to else scores.reference)
        for cell in cells:
            groups, verdicts = self._screened[cell]
            groups.append(group)
            verdicts.append(accepted)
            if gone or not edit.counted:
                groups, lows, highs, lost = self._refused[cell]
                groups.append(group)
                lows.append(low)
                highs.append(high)
                lost.append(accepted)

    def screened(self) -> dict[Cell, Screened]:
        """All rendered edits of each cell."""
        return {
            cell: Screened(np.asarray(groups), np.asarray(verdicts).astype(bool))
            for cell, (groups, verdicts) in self._screened.items()
        }

    def refused(self) -> dict[Cell, Refused]:
        """The rendered edits of each cell whose pairs do not count."""
        return {
            cell: Refused(np.asarray(groups), np.asarray(lows), np.asarray(highs), np.asarray(lost).astype(bool))
            for cell, (groups, lows, highs, lost) in self._refused.items()
        }


class _SecondPairs:
    def __init__(self) -> None:
        self.source, self.group, self.difference, self.counted = array("q"), array("q"), array("d"), array("b")

    def differences(self, by_both: bool) -> Differences | None:
        chosen = np.asarray(self.counted).astype(bool) if by_both else np.ones(len(self.source), bool)
        if not chosen.any():
            return None
        units = Units.of(np.asarray(self.source)[chosen], np.asarray(self.group)[chosen])
        means = units.means(np.asarray(self.difference)[chosen])
        unknown = np.full(len(means), np.nan)
        return Differences(units.group, means, unknown, int(chosen.sum()), units.sources, sizes=units.rows_of_group)


class SecondColumns:
    """The pairs of one method that the second scorer accepts, even if the first one refuses them."""

    def __init__(self) -> None:
        self._pairs: defaultdict[Cell, _SecondPairs] = defaultdict(_SecondPairs)

    def add(
        self, cells: Iterable[Cell], numbers: SourceNumbers, triple: Triple[CounterfactualRow], difference: float | None
    ) -> None:
        """Add an edit to its cells. `difference`: its score less that of its reference arm; None if not known."""
        edit, arm = triple.edit, triple.arm
        if difference is None or not edit.second or (arm is not None and not arm.second):
            return
        for cell in cells:
            pairs = self._pairs[cell]
            pairs.source.append(numbers.source)
            pairs.group.append(numbers.group)
            pairs.difference.append(difference)
            pairs.counted.append(edit.counted)

    def by_both_scorers(self) -> dict[Cell, Differences]:
        """The pairs that both scorers accept."""
        return {cell: measured for cell, pairs in self._pairs.items() if (measured := pairs.differences(by_both=True))}

    def by_second_scorer(self) -> dict[Cell, Differences]:
        """The pairs that the second scorer accepts."""
        return {cell: measured for cell, pairs in self._pairs.items() if (measured := pairs.differences(by_both=False))}
