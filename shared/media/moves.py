"""Pictures that an editor zoomed or shifted: how much of the source they still show, and how they are moved back."""

from __future__ import annotations

import numpy as np
from PIL import Image

from shared.media.images import Pixels
from shared.schemas.evaluation import Move


def shown(move: Move, width: int, height: int) -> float:
    """The share of the source, 0 to 1, that the moved picture still shows."""
    return _visible(width, move.zoom, move.right) * _visible(height, move.zoom, move.down)


def moved_back(image: Pixels, source: Pixels, move: Move) -> Pixels:
    """The image where its source is; at the borders that it does not show, the source's own pixels."""
    height, width = image.shape[:2]
    matrix = (move.zoom, 0, _start(width, move.zoom, move.right), 0, move.zoom, _start(height, move.zoom, move.down))

    def warped(pixels: Pixels, how: Image.Resampling) -> Pixels:
        return np.asarray(Image.fromarray(pixels).transform((width, height), Image.Transform.AFFINE, matrix, how))

    there = warped(np.full((height, width), 255, np.uint8), Image.Resampling.NEAREST)[..., None] > 0
    return np.where(there, warped(image, Image.Resampling.BICUBIC), source)


def _start(side: int, zoom: float, shift: float) -> float:
    """Where the source's first edge is in the image."""
    return (1 - zoom) * side / 2 + shift


def _visible(side: int, zoom: float, shift: float) -> float:
    start = _start(side, zoom, shift)
    return max(0.0, (min(side, start + zoom * side) - max(0.0, start)) / (zoom * side))
