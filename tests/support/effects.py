"""Effects of drawn outcomes, for tests of findings and of their sentences."""

from __future__ import annotations

import numpy as np

from gateway.analysis.effects import Differences, Floats
from shared.schemas.effects import Cell


def cell(value: str, label: str = "bus") -> Cell:
    """The cell of a class in which the weather becomes `value`."""
    return Cell(label=label, factor="weather", value=value, direction="to")


def differences(correct: Floats) -> Differences:
    """One source image for each difference in accuracy, two counterfactuals each."""
    return Differences(np.arange(len(correct)), correct.astype(float), correct / 2, 2 * len(correct))
