"""Houses: three drawings each, facing right, about two units wide, standing on y = 0."""

from __future__ import annotations

from tinyworld.drawing.canvas import BODY, Pen
from tinyworld.objects.drawing.vehicles import CREAM, METAL, WOOD

_ROOF = (112, 84, 76)
_SLATE = (96, 104, 118)


def _window(pen: Pen, x: float, y: float, half: float) -> None:
    pen.box(x - half, y - half, x + half, y + half, CREAM)
    pen.box(x - half * 0.75, y - half * 0.75, x + half * 0.75, y + half * 0.75, (120, 170, 200))
    pen.line(((x, y - half), (x, y + half)), 0.03, CREAM)


def cottage(pen: Pen) -> None:
    pen.box(0.36, 0.9, 0.56, 1.44, _SLATE)
    pen.box(-0.82, 0, 0.82, 0.8, BODY)
    pen.polygon(((-1, 0.74), (-0.5, 1.34), (0.5, 1.34), (1, 0.74)), _ROOF)
    pen.box(-0.16, 0, 0.16, 0.52, WOOD)
    _window(pen, -0.5, 0.4, 0.19)
    _window(pen, 0.5, 0.4, 0.19)


def town_house(pen: Pen) -> None:
    pen.box(-0.62, 0, 0.62, 1.36, BODY)
    pen.polygon(((-0.74, 1.3), (0, 1.86), (0.74, 1.3)), _SLATE)
    pen.box(-0.15, 0, 0.15, 0.46, WOOD)
    for y in (0.66, 1.08):
        for x in (-0.36, 0.36):
            _window(pen, x, y, 0.15)
    _window(pen, 0, 1.5, 0.12)
    pen.box(-0.68, 0, -0.22, 0.1, METAL)


def barn(pen: Pen) -> None:
    pen.polygon(((-0.88, 0), (-0.88, 0.74), (-0.6, 1.16), (0, 1.4), (0.6, 1.16), (0.88, 0.74), (0.88, 0)), BODY)
    pen.line(((-1, 0.64), (-0.64, 1.18), (0, 1.44), (0.64, 1.18), (1, 0.64)), 0.12, _SLATE)
    pen.box(-0.4, 0, 0.4, 0.66, CREAM)
    pen.box(-0.34, 0, -0.02, 0.6, WOOD)
    pen.box(0.02, 0, 0.34, 0.6, WOOD)
    for x in (-0.18, 0.18):
        pen.line(((x - 0.14, 0.04), (x + 0.14, 0.56)), 0.035, CREAM)
        pen.line(((x - 0.14, 0.56), (x + 0.14, 0.04)), 0.035, CREAM)
    _window(pen, 0, 0.96, 0.16)
