"""Resize source images of any size for a diffusion model, and back to exactly the source's size.

The image is scaled so that its short side is the model's native resolution (less for very elongated images, whose
area is capped), then padded at the right and at the bottom by repeating its last pixels to multiples of what the
networks divide by. The inverse crops the padding and scales to the source's size: nothing shifts, so masks of the
source stay valid for the new image.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import cv2
import numpy as np

from shared.media.images import Pixels

MAX_AREA = 2.0  # in squares of the native resolution; an image wider than 2 : 1 gets a smaller short side


@dataclass(frozen=True, slots=True)
class Fit:
    """Sizes in pixels, each (width, height): of the source, scaled, and padded (as the model computes)."""

    source: tuple[int, int]
    scaled: tuple[int, int]
    padded: tuple[int, int]


def fit(width: int, height: int, resolution: int, multiple: int) -> Fit:
    """The sizes for a source of `width` × `height` and a model of native `resolution`, in multiples of `multiple`."""
    scale = min(resolution / min(width, height), sqrt(MAX_AREA / (width * height)) * resolution)
    scaled = (max(1, round(width * scale)), max(1, round(height * scale)))
    padded = (ceil(scaled[0] / multiple) * multiple, ceil(scaled[1] / multiple) * multiple)
    return Fit(source=(width, height), scaled=scaled, padded=padded)


def fit_area(width: int, height: int, resolution: int, multiple: int) -> Fit:
    """The sizes for a model whose native area is `resolution` squared: at most that area, in multiples of `multiple`.

    Nothing is padded: the image is stretched by less than a multiple on each side, and back.
    """
    scale = resolution / sqrt(width * height)
    sides = [max(multiple, int(side * scale) // multiple * multiple) for side in (width, height)]
    return fit_by_stretching((width, height), (sides[0], sides[1]))


def fit_by_stretching(source: tuple[int, int], size: tuple[int, int]) -> Fit:
    """The sizes of a source of (width, height) that is scaled to exactly `size`."""
    return Fit(source=source, scaled=size, padded=size)


def to_model(pixels: Pixels, geometry: Fit) -> Pixels:
    """Resize the source (or, without interpolation, its mask) to the size that the model computes at."""
    right = geometry.padded[0] - geometry.scaled[0]
    bottom = geometry.padded[1] - geometry.scaled[1]
    scaled = _resize(pixels, geometry.scaled)
    return np.asarray(cv2.copyMakeBorder(scaled, 0, bottom, 0, right, cv2.BORDER_REPLICATE), dtype=np.uint8)


def to_source(pixels: Pixels, geometry: Fit) -> Pixels:
    """Resize the model's image, mask or edges to exactly the source's size."""
    return _resize(pixels[: geometry.scaled[1], : geometry.scaled[0]], geometry.source)


def _resize(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    height, width = pixels.shape[:2]
    if (width, height) == size:
        return np.ascontiguousarray(pixels)
    if pixels.ndim == 2:  # keeps masks and edges black and white; INTER_NEAREST would shift them
        interpolation = cv2.INTER_NEAREST_EXACT
    else:
        interpolation = cv2.INTER_AREA if size[0] * size[1] < width * height else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(np.ascontiguousarray(pixels), size, interpolation=interpolation), dtype=np.uint8)
