"""Birds: three drawings each, facing right, about two units wide, standing on y = 0."""

from __future__ import annotations

from tinyworld.drawing.canvas import BODY, BODY_DARK, BODY_LIGHT, Pen, smooth
from tinyworld.objects.drawing.vehicles import CREAM

_BEAK = (240, 160, 40)
_LEG = (206, 128, 44)
_INK = (30, 30, 34)


def songbird(pen: Pen) -> None:
    for x in (-0.06, 0.16):
        pen.line(((x, 0.44), (x + 0.02, 0.02), (x + 0.16, 0.0)), 0.04, _LEG)
    pen.polygon(((-0.5, 0.62), (-1.02, 0.4), (-1.02, 0.62), (-0.5, 0.88)), BODY_DARK)
    pen.polygon(
        smooth((-0.64, 0.68), (-0.3, 0.96), (0.1, 1.1), (0.3, 1.38), (0.6, 1.42), (0.78, 1.2), (0.68, 0.9), (0.5, 0.56),
               (0.1, 0.36), (-0.36, 0.46)), BODY)  # fmt: skip
    pen.polygon(smooth((-0.66, 0.7), (-0.2, 0.96), (0.24, 0.86), (0.2, 0.6), (-0.2, 0.52)), BODY_DARK)
    pen.polygon(((0.74, 1.28), (1.04, 1.16), (0.74, 1.06)), _BEAK)
    pen.circle(0.54, 1.22, 0.085, (250, 250, 250))
    pen.circle(0.56, 1.22, 0.05, _INK)


def stork(pen: Pen) -> None:
    for x in (-0.12, 0.1):
        pen.line(((x, 0.8), (x + 0.04, 0.42), (x, 0.02), (x + 0.16, 0.0)), 0.045, _LEG)
    pen.polygon(
        smooth((-0.86, 0.74), (-0.5, 1.04), (0.1, 1.12), (0.36, 1.3), (0.3, 1.62), (0.4, 1.84), (0.6, 1.8), (0.62, 1.6),
               (0.52, 1.5), (0.6, 1.2), (0.46, 0.88), (0.1, 0.7), (-0.4, 0.68)), BODY)  # fmt: skip
    pen.polygon(smooth((-0.96, 0.66), (-0.4, 1.0), (0.14, 1.0), (0.16, 0.82), (-0.3, 0.72)), BODY_DARK)
    pen.polygon(((0.58, 1.78), (1.06, 1.56), (0.6, 1.62)), _BEAK)
    pen.circle(0.48, 1.72, 0.075, (250, 250, 250))
    pen.circle(0.5, 1.72, 0.045, _INK)


def owl(pen: Pen) -> None:
    for x in (-0.2, 0.2):
        pen.ellipse(x, 0.05, 0.15, 0.06, _LEG)
    pen.polygon(
        smooth((0, 0.06), (-0.46, 0.2), (-0.62, 0.7), (-0.5, 1.16), (-0.52, 1.56), (-0.24, 1.44), (0.24, 1.44),
               (0.52, 1.56), (0.5, 1.16), (0.62, 0.7), (0.46, 0.2)), BODY)  # fmt: skip
    for x in (-1, 1):
        pen.polygon(smooth((x * 0.5, 1.0), (x * 0.72, 0.6), (x * 0.5, 0.14), (x * 0.36, 0.6)), BODY_DARK)
        pen.circle(x * 0.24, 1.18, 0.23, CREAM)
        pen.circle(x * 0.21, 1.18, 0.11, _INK)
    pen.polygon(((-0.09, 1.08), (0.09, 1.08), (0, 0.88)), _BEAK)
    pen.ellipse(0, 0.5, 0.28, 0.34, BODY_LIGHT)
