"""The box around a mask. Needs numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


def box_of(region: Mask) -> tuple[int, int, int, int]:
    """Left, top, right, bottom in pixels; right and bottom are exclusive."""
    rows, columns = np.flatnonzero(region.any(axis=1)), np.flatnonzero(region.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
