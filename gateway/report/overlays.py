"""A label map painted over its image, in the job's colours: for pages and the report."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from shared.images import Pixels, decode
from shared.label_maps import OTHER, VOID, Map

OPACITY = 0.6
OUTLINE = 0.9  # darkness of the borders between classes
_OTHER_COLOUR = (255, 0, 255)
_VOID_COLOUR = (128, 128, 128)


def paint(image_png: bytes, map_png: bytes, colours: Sequence[tuple[int, int, int]]) -> Pixels:
    """The image under translucent class colours, with dark borders between classes. Void pixels are grey.

    Raises the errors of `shared.images.decode`, and ValueError if the map's size differs from the image's.
    """
    image, label_map = decode(image_png), decode(map_png, "L")
    if image.shape[:2] != label_map.shape:
        raise ValueError(f"the label map's size {label_map.shape} differs from the image's {image.shape[:2]}")
    table = np.zeros((256, 3), np.float32)
    table[: len(colours)] = colours
    table[OTHER], table[VOID] = _OTHER_COLOUR, _VOID_COLOUR
    pixels = (1 - OPACITY) * image + OPACITY * table[label_map]
    pixels[_borders(label_map)] *= 1 - OUTLINE
    return np.asarray(pixels.round().astype(np.uint8))


def paint_png(image_png: bytes, map_png: bytes, colours: Sequence[tuple[int, int, int]]) -> bytes:
    """`paint` as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(paint(image_png, map_png, colours)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _borders(label_map: Map) -> np.ndarray:
    borders = np.zeros(label_map.shape, bool)
    borders[:, 1:] |= label_map[:, 1:] != label_map[:, :-1]
    borders[1:] |= label_map[1:] != label_map[:-1]
    return borders
