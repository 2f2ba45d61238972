"""The rendered edits of each cell by verdict, and what the model did on those that do not count."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from gateway.analysis.bounds import Refused
from gateway.analysis.validity import Screened
from gateway.results.pairing import CounterfactualRow
from shared.schemas.effects import Cell


class ScreeningColumns:
    """Collects the rendered edits of one method for one model, edit by edit."""

    def __init__(self) -> None:
        self._screened: defaultdict[Cell, tuple[array[int], array[int]]] = defaultdict(lambda: (array("q"), array("b")))
        self._refused: defaultdict[Cell, tuple[array[int], array[float], array[int]]] = defaultdict(
            lambda: (array("q"), array("d"), array("b"))
        )

    def add(self, cells: Iterable[Cell], group: int, edit: CounterfactualRow, difference: float | None) -> None:
        """Add an edit to its cells. `difference`: its score less that of its reference arm; None if not known."""
        if not edit.rendered:
            return
        for cell in cells:
            groups, verdicts = self._screened[cell]
            groups.append(group)
            verdicts.append(edit.accepted)
            if not edit.counted:
                groups, differences, lost = self._refused[cell]
                groups.append(group)
                differences.append(np.nan if difference is None else difference)
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
            cell: Refused(np.asarray(groups), np.asarray(differences), np.asarray(lost).astype(bool))
            for cell, (groups, differences, lost) in self._refused.items()
        }
