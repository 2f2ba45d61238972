"""Which of the accepted edits of a method each estimand takes, gathered edit by edit."""

from __future__ import annotations

from array import array

import numpy as np

from gateway.analysis.effects import Counting
from gateway.results.pairing import CounterfactualRow


class CountingColumns:
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
