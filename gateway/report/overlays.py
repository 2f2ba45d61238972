"""A label map painted over its image, in the job's colours: for pages and the report."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Mapping, Sequence
from typing import Any

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


def class_colours(classes: Sequence[str], spec: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """A colour for each class: that of the masks in the job's `spec` where it has one, else one of its own."""
    masks = spec.get("masks")
    renamed = spec.get("label_map", {})
    said = (
        {}
        if masks is None
        else {
            renamed.get(one.name, one.name): one.colour for one in MaskSpec.model_validate(masks).classes if one.colour
        }
    )
    return [_parsed(said[name]) if name in said else _own(place) for place, name in enumerate(classes)]


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
    found = np.zeros(places.shape, bool)
    found[:, 1:] |= places[:, 1:] != places[:, :-1]
    found[1:] |= places[1:] != places[:-1]
    return found


def _own(place: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb((place * _GOLDEN) % 1, 0.75 if place % 2 else 0.55, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def _parsed(colour: str) -> tuple[int, int, int]:
    value = int(colour.removeprefix("#"), 16)
    return value >> 16, value >> 8 & 255, value & 255
