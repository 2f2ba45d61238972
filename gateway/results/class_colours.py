"""The colours of a segmentation job's classes, the same in figures, pages and overlays."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import Any

from shared.schemas.masks import MaskSpec

_GOLDEN = 0.618_034  # turns of the colour circle that keep neighbours apart


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


def _own(place: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb((place * _GOLDEN) % 1, 0.75 if place % 2 else 0.55, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def _parsed(colour: str) -> tuple[int, int, int]:
    value = int(colour.removeprefix("#"), 16)
    return value >> 16, value >> 8 & 255, value & 255
