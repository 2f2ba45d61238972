"""Planes and balloons: three drawings each, facing right, about two units wide, standing on y = 0."""

from __future__ import annotations

from tinyworld.drawing.canvas import BODY, BODY_DARK, BODY_LIGHT, Pen, smooth
from tinyworld.objects.drawing.vehicles import CREAM, DARK, GLASS, METAL, WOOD

_TYRE = (30, 30, 34)


def airliner(pen: Pen) -> None:
    pen.polygon(((-0.98, 0.92), (-0.84, 0.92), (-0.5, 0.5), (-0.86, 0.46)), BODY_DARK)
    pen.polygon(((0.06, 0.56), (-0.14, 0.56), (-0.38, 0.88), (-0.26, 0.88)), METAL)
    pen.line(((0.6, 0.3), (0.6, 0.1)), 0.04, DARK)
    pen.line(((-0.14, 0.3), (-0.14, 0.1)), 0.04, DARK)
    pen.circle(0.6, 0.09, 0.09, _TYRE)
    pen.circle(-0.14, 0.09, 0.09, _TYRE)
    pen.polygon(
        smooth((-1, 0.6), (-0.6, 0.62), (0.5, 0.66), (0.86, 0.58), (1.02, 0.42), (0.84, 0.3), (0.4, 0.24),
               (-0.4, 0.28), (-0.8, 0.44)), BODY)  # fmt: skip
    for x in (-0.5, -0.34, -0.18, -0.02, 0.14, 0.3, 0.46):
        pen.circle(x, 0.53, 0.045, (84, 110, 140))
    pen.polygon(((0.7, 0.6), (0.82, 0.59), (0.93, 0.5), (0.72, 0.5)), GLASS)
    pen.polygon(((0.2, 0.4), (-0.1, 0.4), (-0.56, 0.1), (-0.38, 0.1)), METAL)
    pen.ellipse(0.06, 0.22, 0.17, 0.085, (214, 216, 222))
    pen.polygon(((-0.76, 0.58), (-0.62, 0.56), (-0.92, 0.36), (-1.02, 0.36)), METAL)


def propeller_plane(pen: Pen) -> None:
    pen.polygon(((-1, 0.98), (-0.8, 1.0), (-0.62, 0.6), (-0.94, 0.54)), BODY_DARK)
    pen.line(((0.36, 0.4), (0.44, 0.14)), 0.05, DARK)
    pen.wheel(0.46, 0.16)
    pen.wheel(-0.82, 0.1)
    pen.line(((-0.84, 0.5), (-0.82, 0.14)), 0.04, DARK)
    pen.polygon(
        smooth((-1, 0.58), (-0.4, 0.72), (0.3, 0.8), (0.74, 0.7), (0.84, 0.54), (0.7, 0.36), (0.2, 0.3), (-0.5, 0.42)),
        BODY)  # fmt: skip
    pen.polygon(smooth((-0.24, 0.72), (-0.1, 0.98), (0.2, 1.0), (0.42, 0.74), (0.1, 0.7)), GLASS)
    pen.polygon(((0.36, 0.56), (-0.02, 0.56), (-0.44, 0.24), (-0.16, 0.22)), CREAM)
    pen.ellipse(0.93, 0.54, 0.035, 0.42, (120, 96, 72))
    pen.circle(0.9, 0.54, 0.09, METAL)


def biplane(pen: Pen) -> None:
    pen.polygon(((-1, 0.92), (-0.84, 0.96), (-0.64, 0.56), (-0.92, 0.5)), BODY_DARK)
    pen.line(((0.3, 0.34), (0.34, 0.14)), 0.05, DARK)
    pen.wheel(0.36, 0.16)
    pen.polygon(smooth((-1, 0.56), (-0.3, 0.66), (0.4, 0.76), (0.74, 0.7), (0.8, 0.52), (0.7, 0.32), (0, 0.3)), BODY)
    for x in (-0.1, 0.46):
        pen.line(((x, 0.4), (x + 0.06, 1.14)), 0.04, WOOD)
    pen.polygon(((-0.34, 1.08), (0.72, 1.1), (0.8, 1.24), (-0.26, 1.22)), BODY_LIGHT)
    pen.polygon(((-0.44, 0.34), (0.56, 0.36), (0.64, 0.48), (-0.36, 0.46)), CREAM)
    pen.circle(-0.22, 0.78, 0.13, (226, 180, 140))
    pen.polygon(smooth((-0.36, 0.8), (-0.22, 0.96), (-0.08, 0.82)), WOOD)
    pen.ellipse(0.9, 0.54, 0.035, 0.4, (120, 96, 72))
    pen.circle(0.84, 0.54, 0.09, METAL)


def _basket(pen: Pen, neck: float, half: float) -> None:
    for x in (-1, 1):
        pen.line(((x * half, neck), (x * 0.17, 0.4)), 0.025, DARK)
    pen.polygon(((-0.2, 0.4), (0.2, 0.4), (0.16, 0.12), (-0.16, 0.12)), WOOD)
    pen.line(((-0.2, 0.38), (0.2, 0.38)), 0.05, (96, 62, 38))


def round_balloon(pen: Pen) -> None:
    _basket(pen, 0.66, 0.2)
    pen.polygon(
        smooth((0, 2.1), (0.5, 1.96), (0.76, 1.5), (0.6, 1.0), (0.22, 0.62), (-0.22, 0.62), (-0.6, 1.0), (-0.76, 1.5),
               (-0.5, 1.96)), BODY)  # fmt: skip
    for x in (-0.34, 0.34):
        pen.line(smooth((x * 0.2, 2.08), (x, 1.5), (x * 0.45, 0.62), (x, 1.5))[:12], 0.022, DARK)


def pumpkin_balloon(pen: Pen) -> None:
    _basket(pen, 0.74, 0.26)
    for x in (-0.52, 0.52):
        pen.ellipse(x, 1.34, 0.44, 0.54, BODY_DARK)
    for x in (-0.27, 0.27):
        pen.ellipse(x, 1.34, 0.42, 0.62, BODY)
    pen.ellipse(0, 1.34, 0.3, 0.66, BODY_LIGHT)
    pen.polygon(((-0.34, 0.78), (0.34, 0.78), (0.22, 0.64), (-0.22, 0.64)), CREAM)


def cone_balloon(pen: Pen) -> None:
    _basket(pen, 0.56, 0.12)
    pen.polygon(
        smooth((0, 2.16), (0.44, 2.06), (0.66, 1.74), (0.54, 1.4), (0.34, 1.0), (0.14, 0.54), (-0.14, 0.54),
               (-0.34, 1.0), (-0.54, 1.4), (-0.66, 1.74), (-0.44, 2.06)), BODY)  # fmt: skip
    pen.polygon(((-0.57, 1.46), (0.57, 1.46), (0.48, 1.28), (-0.48, 1.28)), CREAM)
    pen.polygon(((-0.57, 1.46), (-0.3, 1.3), (0, 1.46), (0.3, 1.3), (0.57, 1.46)), (214, 160, 60))
