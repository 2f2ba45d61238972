"""Collects a model's predictions on all source images, with or without counterfactuals."""

from __future__ import annotations

from array import array

import numpy as np

from gateway.analysis.effects import Originals


class OriginalColumns:
    """Grows by one source image at a time, 32 bytes each."""

    def __init__(self) -> None:
        self._rank, self._group = array("q"), array("q")
        self._truth, self._predicted = array("q"), array("q")
        self._codes: dict[str, int] = {}

    def add(self, group: int, rank: int | None, truth: str, predicted: str) -> None:
        """Add a source image of a group; None: a class that the model does not know, which does not count."""
        if rank is not None:
            self._rank.append(rank)
            self._group.append(group)
            self._truth.append(self._codes.setdefault(truth, len(self._codes)))
            self._predicted.append(self._codes.setdefault(predicted, len(self._codes)))

    def arrays(self) -> Originals:
        """All added images."""
        return Originals(
            np.asarray(self._rank),
            np.asarray(self._group),
            np.asarray(self._truth),
            np.asarray(self._predicted),
            tuple(self._codes),
        )
