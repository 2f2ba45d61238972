"""Connected regions of a mask, and their overlap with another mask. Needs numpy and OpenCV, not torch."""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
SMALLEST = 0.0008  # share of the image's area below which a connected region is a speck (13 of 128 × 128 pixels)


def connected_regions(mask: Mask) -> list[Mask]:
    """Return the connected regions (8-connectivity) of a mask (height × width) without specks."""
    _, pieces, boxes, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    large = [n for n in range(1, len(boxes)) if boxes[n, cv2.CC_STAT_AREA] >= SMALLEST * mask.size]
    return [np.asarray(pieces == n) for n in large]


def overlap(region: Mask, neighbours: Iterable[Mask], predicted: Mask) -> float:
    """IoU, 0 to 1, of a region with those of `predicted` that touch it; `neighbours` are cut out first."""
    predicted = predicted.copy()
    for neighbour in neighbours:
        predicted &= ~neighbour
    _, pieces = cv2.connectedComponents(predicted.astype(np.uint8), connectivity=8)
    touching = np.setdiff1d(pieces[region], [0])
    match = np.isin(pieces, touching) & predicted
    return float((match & region).sum() / (match | region).sum())


def box_of(region: Mask) -> tuple[int, int, int, int]:
    """Left, top, right, bottom in pixels; right and bottom are exclusive."""
    rows, columns = np.flatnonzero(region.any(axis=1)), np.flatnonzero(region.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
