"""A label map painted over its image, in the job's colours: for pages and the report."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from shared.images import Pixels, decode
from shared.label_maps import OTHER, VOID, Map

OPACITY = 0.6
OUTLINE = 0.9  # of the darkness of borders between classes
_OTHER_COLOUR = (255, 0, 255)
_VOID_COLOUR = (128, 128, 128)


def painted(image_png: bytes, map_png: bytes, colours: Sequence[tuple[int, int, int]]) -> Pixels:
    """The image with the classes of the map as translucent colours, their borders drawn dark; void stays grey.

    Raises what `shared.images.decode` raises, and ValueError for a map of another size.
    """
    image, places = decode(image_png), decode(map_png, "L")
    if image.shape[:2] != places.shape:
        raise ValueError(f"a map of {places.shape} is not of an image of {image.shape[:2]}")
    table = np.zeros((256, 3), np.float32)
    table[: len(colours)] = colours
    table[OTHER], table[VOID] = _OTHER_COLOUR, _VOID_COLOUR
    mixed = (1 - OPACITY) * image + OPACITY * table[places]
    mixed[_borders(places)] *= 1 - OUTLINE
    return np.asarray(mixed.round().astype(np.uint8))


def painted_png(image_png: bytes, map_png: bytes, colours: Sequence[tuple[int, int, int]]) -> bytes:
    """The same as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(painted(image_png, map_png, colours)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _borders(places: Map) -> np.ndarray:
    borders = np.zeros(places.shape, bool)
    borders[:, 1:] |= places[:, 1:] != places[:, :-1]
    borders[1:] |= places[1:] != places[:-1]
    return borders
