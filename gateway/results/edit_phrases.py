"""The phrases of edits, gathered edit by edit; equal ones are stored once."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from gateway.analysis.effects import Integers
from gateway.database.columns import StoredChange

PhrasePairs = tuple[tuple[str, str], ...]  # from and to, one pair for each change of an edit


@dataclass(frozen=True, slots=True)
class EditPhrases:
    """Class and phrases of n edits: `label` and `change` are indices in `labels` and `changes`."""

    labels: tuple[str, ...]
    changes: tuple[PhrasePairs, ...]
    label: Integers
    change: Integers

    def phrases(self) -> set[str]:
        """All phrases that are not empty."""
        return {phrase for pairs in self.changes for pair in pairs for phrase in pair if phrase}


NO_PHRASES = EditPhrases((), (), np.zeros(0, np.int64), np.zeros(0, np.int64))


class PhraseColumns:
    """Collects `EditPhrases`."""

    def __init__(self) -> None:
        self._labels: dict[str, int] = {}
        self._changes: dict[PhrasePairs, int] = {}
        self._label, self._change = array("q"), array("q")

    def add(self, label: str, changes: list[StoredChange]) -> PhrasePairs:
        """Add an edit; returns its phrases."""
        pairs = tuple((change["from_phrase"], change["to_phrase"]) for change in changes)
        self._label.append(self._labels.setdefault(label, len(self._labels)))
        self._change.append(self._changes.setdefault(pairs, len(self._changes)))
        return pairs

    def phrases(self) -> EditPhrases:
        """All edits, as arrays."""
        return EditPhrases(tuple(self._labels), tuple(self._changes), np.asarray(self._label), np.asarray(self._change))
