"""The colours of a segmentation job's classes, the same in figures, pages and overlays."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

from shared.schemas.masks import MaskSpec

_GOLDEN = 0.618_034  # step in hue (golden ratio); keeps the colours of successive classes apart


def class_colours(classes: Sequence[str], masks: MaskSpec | None) -> list[tuple[int, int, int]]:
    """A colour for each class: the one that the job's masks state, or a generated one."""
    stated = {mask.name: mask.colour for mask in masks.classes if mask.colour} if masks else {}
    return [_parse(stated[name]) if name in stated else _generate(index) for index, name in enumerate(classes)]


def _generate(index: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb((index * _GOLDEN) % 1, 0.75 if index % 2 else 0.55, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def _parse(colour: str) -> tuple[int, int, int]:
    value = int(colour.removeprefix("#"), 16)
    return value >> 16, value >> 8 & 255, value & 255
