"""A label map painted over its image, in the job's colours: for pages and the report."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from shared.images import Pixels, decode
from shared.label_maps import OTHER, VOID, Map
from shared.schemas.masks import MaskSpec

OPACITY = 0.6
OUTLINE = 0.9  # of the darkness of borders between classes
_GOLDEN = 0.618_034  # turns of the colour circle that keep neighbours apart
_OTHER_COLOUR = (255, 0, 255)
_VOID_COLOUR = (128, 128, 128)


def class_colours(classes: Sequence[str], masks: MaskSpec | None) -> list[tuple[int, int, int]]:
    """A colour for each class: that of the job's masks where they have one, else one of its own."""
    given = {mask.name: mask.colour for mask in masks.classes if mask.colour} if masks else {}
    return [_parsed(given[name]) if name in given else _own(place) for place, name in enumerate(classes)]


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


def _own(place: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb((place * _GOLDEN) % 1, 0.75 if place % 2 else 0.55, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def _parsed(colour: str) -> tuple[int, int, int]:
    value = int(colour.removeprefix("#"), 16)
    return value >> 16, value >> 8 & 255, value & 255
