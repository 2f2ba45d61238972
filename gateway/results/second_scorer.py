"""The edits whose pairs the second scorer accepts, even if the first one refuses them."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from gateway.analysis.effects import Differences, Units
from gateway.results.pairing import CounterfactualRow, Triple
from gateway.results.stream import Numbers
from shared.schemas.effects import Cell


class _Pairs:
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
    """Collects the pairs of one method that the second scorer accepts, edit by edit, with one model's scores."""

    def __init__(self) -> None:
        self._pairs: defaultdict[Cell, _Pairs] = defaultdict(_Pairs)

    def add(
        self, cells: Iterable[Cell], numbers: Numbers, triple: Triple[CounterfactualRow], difference: float | None
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
