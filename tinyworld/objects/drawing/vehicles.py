"""Cars, buses, trucks and boats: three drawings each, facing right, about two units long, standing on y = 0."""

from __future__ import annotations

from tinyworld.drawing.canvas import BODY, BODY_DARK, BODY_LIGHT, Pen, smooth

GLASS = (186, 222, 240)
DARK = (52, 54, 62)
METAL = (150, 154, 162)
LAMP = (255, 238, 150)
CREAM = (250, 244, 226)
WOOD = (142, 98, 62)


def sedan(pen: Pen) -> None:
    pen.polygon(((-0.62, 0.5), (-0.36, 0.86), (0.24, 0.86), (0.56, 0.5)), BODY)
    pen.polygon(smooth((-1, 0.24), (-0.98, 0.52), (-0.5, 0.56), (0.55, 0.56), (0.96, 0.46), (1, 0.2), (0, 0.16)), BODY)
    pen.polygon(((-0.5, 0.53), (-0.31, 0.79), (-0.07, 0.79), (-0.07, 0.53)), GLASS)
    pen.polygon(((0.02, 0.53), (0.02, 0.79), (0.2, 0.79), (0.43, 0.53)), GLASS)
    pen.line(((-0.02, 0.5), (-0.02, 0.22)), 0.025, DARK)
    pen.circle(0.93, 0.38, 0.06, LAMP)
    pen.wheel(-0.56, 0.22)
    pen.wheel(0.58, 0.22)


def hatchback(pen: Pen) -> None:
    pen.polygon(
        smooth((-0.86, 0.22), (-0.88, 0.6), (-0.66, 0.98), (-0.1, 1.06), (0.3, 0.92), (0.56, 0.64), (0.88, 0.52),
               (0.9, 0.22), (0, 0.18)), BODY)  # fmt: skip
    pen.polygon(((-0.7, 0.62), (-0.56, 0.9), (-0.16, 0.95), (-0.16, 0.62)), GLASS)
    pen.polygon(((-0.06, 0.62), (-0.06, 0.95), (0.2, 0.88), (0.42, 0.62)), GLASS)
    pen.line(((-0.11, 0.58), (-0.11, 0.24)), 0.025, DARK)
    pen.circle(0.8, 0.44, 0.075, LAMP)
    pen.wheel(-0.5, 0.24)
    pen.wheel(0.52, 0.24)


def van(pen: Pen) -> None:
    pen.polygon(
        smooth((-0.98, 0.2), (-0.98, 0.92), (-0.8, 1.04), (0.1, 1.04), (0.38, 0.94), (0.66, 0.58), (0.96, 0.5),
               (1, 0.2), (0, 0.16)), BODY)  # fmt: skip
    pen.box(-0.84, 0.64, -0.42, 0.9, GLASS)
    pen.box(-0.32, 0.64, 0.06, 0.9, GLASS)
    pen.polygon(((0.14, 0.64), (0.14, 0.9), (0.34, 0.88), (0.52, 0.64)), GLASS)
    pen.line(((-0.92, 0.5), (0.6, 0.5)), 0.025, DARK)
    pen.circle(0.9, 0.4, 0.06, LAMP)
    pen.wheel(-0.56, 0.22)
    pen.wheel(0.58, 0.22)


def coach(pen: Pen) -> None:
    pen.polygon(((-1, 0.14), (-1, 0.8), (-0.94, 0.88), (0.86, 0.88), (1, 0.5), (1, 0.14)), BODY)
    pen.polygon(((-0.92, 0.48), (-0.92, 0.78), (0.84, 0.78), (0.94, 0.48)), GLASS)
    for x in (-0.55, -0.2, 0.15, 0.5):
        pen.box(x - 0.02, 0.46, x + 0.02, 0.8, DARK)
    pen.box(0.54, 0.16, 0.78, 0.78, (214, 236, 246))
    pen.line(((0.66, 0.16), (0.66, 0.78)), 0.025, DARK)
    pen.box(0.92, 0.24, 1.0, 0.32, LAMP)
    pen.wheel(-0.6, 0.17)
    pen.wheel(0.36, 0.17)


def double_decker(pen: Pen) -> None:
    pen.box(-0.84, 0.14, 0.84, 1.42, BODY)
    for y in (0.48, 0.98):
        for x in (-0.74, -0.36, 0.02, 0.4):
            pen.box(x, y, x + 0.32, y + 0.3, GLASS)
    pen.box(-0.84, 0.84, 0.84, 0.9, CREAM)
    pen.box(0.48, 0.16, 0.74, 0.78, (214, 236, 246))
    pen.line(((0.61, 0.16), (0.61, 0.78)), 0.025, DARK)
    pen.wheel(-0.5, 0.18)
    pen.wheel(0.28, 0.18)


def school_bus(pen: Pen) -> None:
    pen.polygon(((-1, 0.2), (-1, 0.84), (-0.9, 0.96), (0.5, 0.96), (0.6, 0.84), (0.6, 0.2)), BODY)
    pen.polygon(smooth((0.56, 0.2), (0.56, 0.56), (0.84, 0.54), (1, 0.44), (1, 0.2)), BODY_DARK)
    for x in (-0.9, -0.62, -0.34, -0.06):
        pen.box(x, 0.58, x + 0.21, 0.84, GLASS)
    pen.box(0.24, 0.24, 0.5, 0.86, GLASS)
    pen.line(((0.37, 0.24), (0.37, 0.86)), 0.025, DARK)
    pen.line(((-0.98, 0.44), (0.2, 0.44)), 0.04, DARK)
    pen.circle(0.94, 0.38, 0.06, LAMP)
    pen.wheel(-0.56, 0.19)
    pen.wheel(0.7, 0.19)


def _cab(pen: Pen) -> None:
    pen.polygon(((0.46, 0.2), (0.46, 0.84), (0.78, 0.84), (0.98, 0.5), (1, 0.2)), BODY_DARK)
    pen.polygon(((0.56, 0.52), (0.56, 0.75), (0.74, 0.75), (0.87, 0.52)), GLASS)
    pen.box(0.92, 0.26, 1, 0.34, LAMP)


def box_truck(pen: Pen) -> None:
    pen.box(-1, 0.18, 0.98, 0.28, DARK)
    _cab(pen)
    pen.box(-1, 0.28, 0.4, 1.16, BODY)
    for x in (-0.65, -0.3, 0.05):
        pen.line(((x, 0.3), (x, 1.14)), 0.022, DARK)
    pen.wheel(-0.72, 0.2)
    pen.wheel(-0.26, 0.2)
    pen.wheel(0.7, 0.2)


def pickup(pen: Pen) -> None:
    pen.box(-0.9, 0.5, -0.5, 0.86, WOOD)
    pen.box(-0.5, 0.5, -0.2, 0.72, (176, 130, 84))
    pen.polygon(((-0.08, 0.5), (-0.08, 0.98), (0.28, 0.98), (0.52, 0.6)), BODY)
    pen.polygon(((-1, 0.22), (-1, 0.58), (0.4, 0.62), (0.9, 0.58), (1, 0.46), (1, 0.22)), BODY)
    pen.polygon(((0.0, 0.64), (0.0, 0.89), (0.24, 0.89), (0.41, 0.64)), GLASS)
    pen.line(((-0.1, 0.26), (-0.1, 0.6)), 0.03, DARK)
    pen.line(((-0.98, 0.57), (-0.1, 0.57)), 0.045, DARK)
    pen.box(0.92, 0.4, 1, 0.5, LAMP)
    pen.wheel(-0.58, 0.26)
    pen.wheel(0.6, 0.26)


def tanker(pen: Pen) -> None:
    pen.box(-1, 0.18, 0.98, 0.28, DARK)
    _cab(pen)
    pen.polygon(
        smooth((-0.98, 0.36), (-1.06, 0.64), (-0.98, 0.92), (-0.8, 0.98), (0.2, 0.98), (0.36, 0.92), (0.42, 0.64),
               (0.36, 0.36), (0.2, 0.3), (-0.8, 0.3)), BODY)  # fmt: skip
    pen.box(-0.95, 0.74, 0.33, 0.82, BODY_LIGHT)
    pen.box(-0.44, 0.97, -0.2, 1.06, DARK)
    for x in (-0.7, 0.08):
        pen.line(((x, 0.3), (x, 0.98)), 0.04, METAL)
    for x in (-0.8, -0.42, -0.04, 0.7):
        pen.wheel(x, 0.18)


def sailing_boat(pen: Pen) -> None:
    pen.line(((0.05, 0.3), (0.05, 1.75)), 0.045, WOOD)
    pen.polygon(((-0.02, 0.5), (-0.02, 1.66), (-0.74, 0.5)), BODY_LIGHT)
    pen.polygon(((0.12, 0.5), (0.12, 1.45), (0.72, 0.5)), CREAM)
    pen.polygon(smooth((-0.9, 0.38), (-0.3, 0.36), (0.5, 0.38), (0.98, 0.46), (0.62, 0.04), (-0.6, 0.0)), BODY)
    pen.line(((-0.86, 0.33), (0.86, 0.37)), 0.05, CREAM)


def motorboat(pen: Pen) -> None:
    pen.box(-1.0, 0.1, -0.86, 0.56, DARK)
    pen.polygon(((-0.5, 0.4), (-0.5, 0.86), (0.08, 0.86), (0.34, 0.42)), CREAM)
    pen.polygon(((-0.38, 0.52), (-0.38, 0.76), (0.04, 0.76), (0.2, 0.5)), (120, 176, 206))
    pen.line(((-0.72, 0.4), (-0.72, 1.0)), 0.03, METAL)
    pen.polygon(((-0.72, 1.0), (-0.72, 0.82), (-1.0, 0.91)), BODY_DARK)
    pen.polygon(((-0.9, 0.48), (0.3, 0.46), (1.0, 0.62), (0.66, 0.1), (0.5, 0.0), (-0.84, 0.0)), BODY)
    pen.polygon(((-0.89, 0.3), (0.9, 0.38), (0.83, 0.3), (-0.88, 0.22)), CREAM)


def ferry(pen: Pen) -> None:
    pen.box(-0.3, 0.98, -0.02, 1.34, BODY_DARK)
    pen.box(-0.3, 1.2, -0.02, 1.28, CREAM)
    pen.box(-0.6, 0.74, 0.42, 1.02, CREAM)
    pen.box(-0.8, 0.44, 0.64, 0.76, (234, 232, 226))
    for x in (-0.5, -0.24, 0.02, 0.26):
        pen.box(x, 0.82, x + 0.12, 0.94, (90, 130, 160))
    for x in (-0.7, -0.44, -0.18, 0.08, 0.34):
        pen.circle(x + 0.06, 0.6, 0.065, (90, 130, 160))
    pen.polygon(((-1, 0.48), (1, 0.5), (0.78, 0.0), (-0.86, 0.0)), BODY)
    pen.line(((-0.96, 0.42), (0.94, 0.43)), 0.04, BODY_LIGHT)
