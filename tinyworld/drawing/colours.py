"""The colours of things that have one of their own, by name."""

from __future__ import annotations

from tinyworld.drawing.canvas import Colour

OBJECT_COLOURS: dict[str, Colour] = {
    "red": (218, 40, 44),
    "orange": (246, 134, 30),
    "yellow": (250, 214, 48),
    "green": (44, 158, 74),
    "blue": (38, 92, 214),
    "purple": (142, 62, 184),
    "white": (246, 246, 248),
    "black": (50, 50, 56),
}
COMPANION_COLOURS: dict[str, Colour] = {
    "red": (226, 44, 48),
    "yellow": (252, 216, 52),
    "green": (40, 166, 82),
    "blue": (44, 98, 224),
    "white": (248, 248, 250),
}
