"""Collects a model's ranks of the true class on all source images, with or without counterfactuals."""

from __future__ import annotations

from array import array

import numpy as np

from gateway.analysis.effects import Originals


class OriginalColumns:
    """Grows by one source image at a time, 16 bytes each."""

    def __init__(self) -> None:
        self._rank, self._group = array("q"), array("q")

    def add(self, group: int, rank: int | None) -> None:
        """Add a source image of a group; None: a class that the model does not know, which does not count."""
        if rank is not None:
            self._rank.append(rank)
            self._group.append(group)

    def arrays(self) -> Originals:
        """All added ranks."""
        return Originals(np.asarray(self._rank), np.asarray(self._group))
