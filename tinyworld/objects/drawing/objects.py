"""The labelled objects by class and silhouette, and the patterned surface of their bodies.

Planes and balloons: three drawings each, facing right, about two units wide, standing on y = 0.

Birds: three drawings each, facing right, about two units wide, standing on y = 0.

Houses: three drawings each, facing right, about two units wide, standing on y = 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinyworld.drawing.canvas import BODY, BODY_DARK, BODY_LIGHT, Colour, Image, Layer, Pen, smooth
from tinyworld.drawing.colours import OBJECT_COLOURS
from tinyworld.objects.drawing import vehicles
from tinyworld.objects.drawing.vehicles import CREAM, DARK, GLASS, METAL, WOOD

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


Drawing = Callable[[Pen], None]

DRAWINGS: dict[str, tuple[Drawing, Drawing, Drawing]] = {
    "car": (vehicles.sedan, vehicles.hatchback, vehicles.van),
    "bus": (vehicles.coach, vehicles.double_decker, vehicles.school_bus),
    "truck": (vehicles.box_truck, vehicles.pickup, vehicles.tanker),
    "boat": (vehicles.sailing_boat, vehicles.motorboat, vehicles.ferry),
    "plane": (airliner, propeller_plane, biplane),
    "balloon": (round_balloon, pumpkin_balloon, cone_balloon),
    "house": (cottage, town_house, barn),
    "bird": (songbird, stork, owl),
}
_CONTRAST: dict[str, Colour] = {"yellow": (150, 96, 20), "white": (128, 134, 150), "black": (176, 176, 184)}


def draw_object(label: str, silhouette: int, layer: Layer, x: float, y: float, scale: float, flipped: bool) -> None:
    """Draw one silhouette standing at (x, y) in image widths; half its width is `scale`."""
    DRAWINGS[label][silhouette](Pen(layer, x, y, scale, flipped=flipped))


def surface(colour: str, pattern: str, side: int, x: float, y: float, scale: float) -> Image:
    """The colour and pattern of a body (side x side x 3); stripes and dots are fixed to the object and grow with it."""
    body = np.array(OBJECT_COLOURS[colour], np.uint8)
    texture = np.empty((side, side, 3), np.uint8)
    texture[:] = body
    if pattern == "plain":
        return texture
    step = 0.27 * scale * side
    across = ((np.arange(side, dtype=np.float32) - x * side) / step)[None, :]
    down = ((np.arange(side, dtype=np.float32) - y * side) / step)[:, None]
    if pattern == "striped":
        marked = (across + down) % 1.0 < 0.4
    else:
        shifted = across + 0.5 * (np.floor(down / 0.9) % 2)
        marked = (shifted % 1.0 - 0.5) ** 2 + ((down % 0.9) - 0.45) ** 2 < 0.3**2
    texture[marked] = _CONTRAST.get(colour, (255, 246, 232))
    return texture
