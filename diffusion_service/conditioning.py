"""Control images: which edges of the source hold the new image to the source's structure.

Images are uint8 arrays of height × width × 3 (RGB), masks and edge images uint8 of height × width with values
0 and 255. Everything is computed at the size of the image that is given; nothing here knows models or HTTP.
"""

from __future__ import annotations

import cv2
import numpy as np

from shared.images import Pixels

# cv2 would start a thread per core for images that take well under a millisecond.
cv2.setNumThreads(1)

LOOSE_EXTENT = 0.09  # structure: a connected edge that spans less than this share of the image's short side is loose
SPECK_EXTENT = 0.05  # structure: the same for edges of what must stay
SMOOTHING = 5  # structure: window of the median filter, in pixels of a 128-pixel short side
OBJECT_MARGIN = 0.025  # object: edges up to this share of the short side outside the mask belong to the object


def canny(image: Pixels, low: int = 60, high: int = 120) -> Pixels:
    """Canny edges of an RGB image after a 3 × 3 Gaussian of sigma 0.8; the ControlNet is trained on exactly these."""
    gray = cv2.cvtColor(cv2.GaussianBlur(image, (3, 3), 0.8), cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.Canny(gray, low, high), dtype=np.uint8)


def structure(image: Pixels, keep: Pixels | None = None) -> Pixels:
    """The edges that make up the scene, without the small loose ones of rain, snow, stars and texture.

    The image is smoothed by a median filter, which removes strokes thinner than half its window and leaves outlines
    where they are; then connected edges of small extent are dropped. With a `keep` mask, the edges of what must
    stay are added from the unsmoothed image, so that wheels and windows are not lost with the texture; only specks
    (flakes, dots) stay away.
    """
    short = min(image.shape[:2])
    window = max(3, round(SMOOTHING * short / 128) | 1)
    edges = _drop_loose(canny(_median(image, window)), LOOSE_EXTENT * short)
    if keep is None:
        return edges
    return np.maximum(edges, object_region(_drop_loose(canny(image), SPECK_EXTENT * short), keep))


def object_region(edges: Pixels, keep: Pixels) -> Pixels:
    """The edges that lie inside the `keep` mask or within a few pixels of its outline."""
    margin = max(1, round(OBJECT_MARGIN * min(edges.shape)))
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * margin + 1, 2 * margin + 1))
    return np.where(cv2.dilate(keep, kernel) > 127, edges, 0).astype(np.uint8)


def _median(image: Pixels, window: int) -> Pixels:
    return np.asarray(cv2.medianBlur(image, window), dtype=np.uint8)


def _drop_loose(edges: Pixels, extent: float) -> Pixels:
    """The connected edges whose bounding box is at least `extent` pixels long in one direction."""
    count, labels, boxes, _ = cv2.connectedComponentsWithStats(edges, connectivity=8)
    longest = boxes[:, [cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT]].max(axis=1)
    kept = longest >= extent
    kept[0] = False  # component 0 is everything that is not an edge
    return np.where(kept[labels], 255, 0).astype(np.uint8) if count > 1 else edges
