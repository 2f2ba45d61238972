"""Connected regions of a mask, and how much of one is still there in another mask. Numpy and OpenCV, no torch."""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
SMALLEST = 0.0008  # share of the image's area below which a connected region is a speck (13 of 128 × 128 pixels)


def connected(mask: Mask) -> list[Mask]:
    """The connected regions of a mask (height × width), corners touching; specks are left out."""
    _, pieces, boxes, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    large = [n for n in range(1, len(boxes)) if boxes[n, cv2.CC_STAT_AREA] >= SMALLEST * mask.size]
    return [np.asarray(pieces == n) for n in large]


def overlap(region: Mask, others: Iterable[Mask], there: Mask) -> float:
    """IoU, 0 to 1, of a region with the connected regions of `there` that touch it; `others` belong to others."""
    there = there.copy()
    for other in others:
        there &= ~other
    _, pieces = cv2.connectedComponents(there.astype(np.uint8), connectivity=8)
    touching = np.setdiff1d(pieces[region], [0])
    now = np.isin(pieces, touching) & there
    return float((now & region).sum() / (now | region).sum())


def box_of(region: Mask) -> tuple[int, int, int, int]:
    """Left, top, right, bottom in pixels, the last two beyond the region."""
    rows, columns = np.flatnonzero(region.any(axis=1)), np.flatnonzero(region.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
