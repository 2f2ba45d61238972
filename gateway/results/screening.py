"""The rendered edits of each cell by verdict, and what the model did on those that do not count."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gateway.analysis.bounds import Refused, possible_difference
from gateway.analysis.validity import Screened
from gateway.results.pairing import CounterfactualRow
from shared.schemas.effects import Cell


class PairScores(NamedTuple):
    """A model's scores, 0 … 1, on an edit's image and on its reference arm; None where one is not known."""

    image: float | None
    reference: float | None

    @property
    def difference(self) -> float | None:
        """The image's score less the arm's; None if one is not known."""
        return None if self.image is None or self.reference is None else self.image - self.reference


class ScreeningColumns:
    """Collects the rendered edits of one method for one model, edit by edit."""

    def __init__(self) -> None:
        self._screened: defaultdict[Cell, tuple[array[int], array[int]]] = defaultdict(lambda: (array("q"), array("b")))
        self._refused: defaultdict[Cell, tuple[array[int], array[float], array[float], array[int]]] = defaultdict(
            lambda: (array("q"), array("d"), array("d"), array("b"))
        )

    def add(self, cells: Iterable[Cell], group: int, edit: CounterfactualRow, scores: PairScores) -> None:
        """Add an edit to its cells. A refused arm's score says nothing of a valid arm, so it counts as not known."""
        if not edit.rendered:
            return
        low, high = possible_difference(scores.image, None if edit.lost_to else scores.reference)
        for cell in cells:
            groups, verdicts = self._screened[cell]
            groups.append(group)
            verdicts.append(edit.accepted)
            if not edit.counted:
                groups, lows, highs, lost = self._refused[cell]
                groups.append(group)
                lows.append(low)
                highs.append(high)
                lost.append(edit.accepted)

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
