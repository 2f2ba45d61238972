"""The companions beside the object: person, dog, bicycle, sign; each shows its colour prominently."""

from __future__ import annotations

from collections.abc import Callable

from tinyworld.drawing.canvas import Colour, Layer, Pen, smooth
from tinyworld.drawing.colours import COMPANION_COLOURS

_SKIN = (236, 188, 150)
_INK = (36, 36, 42)


def _person(pen: Pen, colour: Colour) -> None:
    for x in (-0.12, 0.12):
        pen.box(x - 0.1, 0, x + 0.1, 0.66, (66, 68, 88))
    pen.polygon(smooth((-0.34, 0.5), (-0.3, 1.2), (0, 1.36), (0.3, 1.2), (0.34, 0.5), (0, 0.46)), colour)
    pen.line(((-0.28, 1.14), (-0.42, 0.68)), 0.15, colour)
    pen.line(((0.28, 1.14), (0.42, 0.68)), 0.15, colour)
    pen.circle(0, 1.56, 0.23, _SKIN)
    pen.polygon(smooth((-0.24, 1.56), (-0.2, 1.78), (0.08, 1.84), (0.24, 1.66), (0, 1.68)), (84, 54, 38))


def _dog(pen: Pen, colour: Colour) -> None:
    for x in (-0.46, -0.26, 0.22, 0.4):
        pen.box(x - 0.07, 0, x + 0.07, 0.4, (120, 84, 58))
    pen.line(((-0.52, 0.6), (-0.74, 0.98)), 0.12, (150, 108, 74))
    pen.polygon(smooth((-0.58, 0.34), (-0.6, 0.68), (0.3, 0.74), (0.5, 0.4), (0, 0.3)), colour)
    pen.polygon(
        smooth((0.3, 0.62), (0.34, 1.02), (0.62, 1.06), (0.92, 0.86), (0.88, 0.72), (0.6, 0.66)), (150, 108, 74)
    )
    pen.polygon(((0.36, 1.0), (0.3, 0.66), (0.48, 0.74), (0.5, 1.02)), (96, 64, 42))
    pen.circle(0.9, 0.82, 0.08, _INK)
    pen.circle(0.62, 0.92, 0.05, _INK)


def _bicycle(pen: Pen, colour: Colour) -> None:
    for x in (-0.52, 0.52):
        pen.circle(x, 0.42, 0.42, _INK)
        pen.circle(x, 0.42, 0.3, (206, 208, 212))
    frame = ((-0.52, 0.42), (-0.2, 0.98), (0.36, 0.98), (0, 0.42), (-0.52, 0.42))
    pen.line(frame, 0.15, colour)
    pen.line(((0, 0.42), (-0.26, 1.1)), 0.13, colour)
    pen.line(((0.52, 0.42), (0.34, 1.16)), 0.15, colour)
    pen.line(((-0.44, 1.14), (-0.1, 1.14)), 0.13, _INK)
    pen.line(((0.34, 1.2), (0.6, 1.26)), 0.1, _INK)


def _sign(pen: Pen, colour: Colour) -> None:
    pen.box(-0.07, 0, 0.07, 1.0, (122, 110, 100))
    pen.polygon(((-0.58, 0.92), (0.46, 0.92), (0.76, 1.26), (0.46, 1.6), (-0.58, 1.6)), colour)
    pen.line(((-0.4, 1.38), (0.4, 1.38)), 0.09, _INK)
    pen.line(((-0.4, 1.14), (0.3, 1.14)), 0.09, _INK)


COMPANIONS: dict[str, Callable[[Pen, Colour], None]] = {
    "person": _person,
    "dog": _dog,
    "bicycle": _bicycle,
    "sign": _sign,
}
_UNIT = {"person": 0.17, "dog": 0.115, "bicycle": 0.115, "sign": 0.135}


def draw_companion(companion: str, colour: str, layer: Layer, x: float, y: float, flipped: bool) -> None:
    """Draw a companion standing at (x, y) in image widths."""
    COMPANIONS[companion](Pen(layer, x, y, _UNIT[companion], flipped=flipped), COMPANION_COLOURS[colour])
