"""Compute control images: edges of the source, which make the new image keep the source's structure.

Images are uint8 arrays of height × width × 3 (RGB). Masks and edge images are uint8 arrays of height × width with
values 0 and 255; soft edges also have values between. Results have the size of the given image and need no models.
"""

from __future__ import annotations

import cv2
import numpy as np

from shared.images import Pixels

# By default cv2 starts a thread per core, though an image takes less than a millisecond.
cv2.setNumThreads(1)

LOOSE_EXTENT = 0.09  # structure: connected edges shorter than this share of the image's short side are loose
SPECK_EXTENT = 0.05  # structure: the same for edges of what must stay
SMOOTHING = 5  # structure: window of the median filter, in pixels of a 128-pixel short side
SOFT_SCALES = (0.002, 0.004, 0.008)  # soft edges: widths of the Gaussians, in shares of the short side
SOFT_BRIGHTEST = 99.0  # soft edges: percentile of the edge strength that becomes white
OBJECT_MARGIN = 0.025  # object: edges within this share of the short side outside the mask belong to the object


def canny(image: Pixels, low: int = 60, high: int = 120) -> Pixels:
    """Canny edges of an RGB image after a 3 × 3 Gaussian of sigma 0.8; the ControlNet is trained on exactly these."""
    gray = cv2.cvtColor(cv2.GaussianBlur(image, (3, 3), 0.8), cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.Canny(gray, low, high), dtype=np.uint8)


def structure(image: Pixels, keep: Pixels | None = None) -> Pixels:
    """The edges of the scene's structure, without the small loose ones of rain, snow, stars and texture.

    The image is smoothed by a median filter, which removes strokes thinner than half its window and preserves outlines;
    then connected edges of small extent are dropped. With a `keep` mask, the edges inside it are added from the
    unsmoothed image, so that wheels and windows are kept; only specks (flakes, dots) are left out.
    """
    short = min(image.shape[:2])
    edges = _drop_loose(canny(smooth_strokes(image)), LOOSE_EXTENT * short)
    if keep is None:
        return edges
    return np.maximum(edges, object_region(_drop_loose(canny(image), SPECK_EXTENT * short), keep))


def object_region(control: Pixels, keep: Pixels) -> Pixels:
    """The part of a control image (one channel or three) inside the `keep` mask or within a few pixels of it."""
    margin = max(1, round(OBJECT_MARGIN * min(keep.shape)))
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * margin + 1, 2 * margin + 1))
    near = cv2.dilate(keep, kernel) > 127
    return np.asarray(np.where(near if control.ndim == 2 else near[..., None], control, 0), np.uint8)


def soft_edges(image: Pixels) -> Pixels:
    """Edge strength, 0 … 255: the gradient's length, the largest over the colours, averaged over three scales.

    It needs no weights, unlike HED (arXiv 1504.06375, kind `hed`). Like HED's, its lines are broad and graded; unlike
    HED, it cannot tell objects from texture, so texture has edges too.
    """
    short = min(image.shape[:2])
    strength = np.zeros(image.shape[:2], np.float32)
    for scale in SOFT_SCALES:
        sigma = max(0.6, scale * short)
        smooth = cv2.GaussianBlur(image, (0, 0), sigma).astype(np.float32)
        across, along = (cv2.Sobel(smooth, cv2.CV_32F, *axis) for axis in ((1, 0), (0, 1)))
        strength += sigma * np.hypot(across, along).max(axis=2)
    edge_values = strength[strength > 0]
    brightest = float(np.percentile(edge_values, SOFT_BRIGHTEST)) if edge_values.size else 1.0
    return np.asarray(np.clip(strength * (255 / brightest), 0, 255), np.uint8)


def smooth_strokes(image: Pixels) -> Pixels:
    """The image without strokes thinner than half the window of a median filter."""
    window = max(3, round(SMOOTHING * min(image.shape[:2]) / 128) | 1)
    return np.asarray(cv2.medianBlur(image, window), dtype=np.uint8)


def _drop_loose(edges: Pixels, extent: float) -> Pixels:
    """The connected edges whose bounding box is at least `extent` pixels long in one direction."""
    count, labels, boxes, _ = cv2.connectedComponentsWithStats(edges, connectivity=8)
    longest = boxes[:, [cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT]].max(axis=1)
    is_long = longest >= extent
    is_long[0] = False  # component 0 is everything that is not an edge
    return np.where(is_long[labels], 255, 0).astype(np.uint8) if count > 1 else edges
