"""The colours of a segmentation job's classes, the same in figures, pages and overlays."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

from shared.schemas.masks import MaskSpec

_GOLDEN = 0.618_034  # turns of the colour circle that keep neighbours apart


def class_colours(classes: Sequence[str], masks: MaskSpec | None) -> list[tuple[int, int, int]]:
    """A colour for each class: that of the job's masks where they have one, else one of its own."""
    given = {mask.name: mask.colour for mask in masks.classes if mask.colour} if masks else {}
    return [_parsed(given[name]) if name in given else _own(place) for place, name in enumerate(classes)]


def _own(place: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb((place * _GOLDEN) % 1, 0.75 if place % 2 else 0.55, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def _parsed(colour: str) -> tuple[int, int, int]:
    value = int(colour.removeprefix("#"), 16)
    return value >> 16, value >> 8 & 255, value & 255
