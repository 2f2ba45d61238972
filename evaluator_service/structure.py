"""Structure agreement: how much of the source's outlines is preserved in another image.

It is the share of the source's edge pixels that have an edge pixel of the other image within a tolerance (the recall of
boundary benchmarks), corrected for chance like Cohen's kappa: (share - expected) / (1 - expected), where `expected` is
the share of all pixels in the area that have such a neighbour. Without the correction, rain or noise would agree with
everything. The measure is asymmetric on purpose: a counterfactual may add stars or a new background with all their
edges, but it must keep the outlines that carry the ground truth. On drawn scenes it detects images whose class was
replaced better than the uncorrected share or its F-measure do.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from shared.images import Pixels

# By default cv2 starts a thread per core, though an image takes less than a millisecond.
cv2.setNumThreads(1)

TOLERANCE = 2 / 128  # of the short side: two pixels of an image of 128
# Only strong edges of the source count; in the other image weak edges also match them (night, fog).
SOURCE_THRESHOLDS = (60, 120)
IMAGE_THRESHOLDS = (30, 80)
EDGES_EVERYWHERE = 0.98  # from this share of pixels near an edge, an image is noise and would agree with anything
MASK_MARGIN = 0.025  # in shares of the short side; an outline lies on the border of its mask


def agreement(source: Pixels, image: Pixels, mask: Pixels | None = None) -> float:
    """Share of the source's edges that the image keeps (0: chance level, 1: all), inside `mask` (255) if given.

    Both images are height × width × 3 of equal size. The result is 1.0 for a source without edges there, and 0.0
    for an image with edges everywhere.
    """
    if image.shape != source.shape or (mask is not None and mask.shape != source.shape[:2]):
        raise ValueError("source, image and mask must have the same size; send the image as it came from the editor")
    short = min(source.shape[:2])
    inside = np.ones(source.shape[:2], np.bool_)
    if mask is not None:
        inside = _dilate(mask > 127, max(1, round(MASK_MARGIN * short)))
    edges = _edges(source, SOURCE_THRESHOLDS) & inside
    if not edges.any():
        return 1.0
    near = _dilate(_edges(image, IMAGE_THRESHOLDS), max(1, round(TOLERANCE * short)))
    matched, expected = near[edges].mean(), near[inside].mean()
    return float(max(0.0, (matched - expected) / (1 - expected))) if expected < EDGES_EVERYWHERE else 0.0


def _edges(image: Pixels, thresholds: tuple[int, int]) -> NDArray[np.bool_]:
    gray = cv2.cvtColor(cv2.GaussianBlur(image, (3, 3), 0.8), cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.Canny(gray, *thresholds) > 0)


def _dilate(region: NDArray[np.bool_], radius: int) -> NDArray[np.bool_]:
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
    return np.asarray(cv2.dilate(region.astype(np.uint8), kernel) > 0)
