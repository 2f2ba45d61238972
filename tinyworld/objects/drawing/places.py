"""The six backgrounds: scenery in the light of the weather and the time, on one opaque layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinyworld.drawing.canvas import Colour, Layer, Pen
from tinyworld.drawing.sky import sky
from tinyworld.objects.drawing.geometry import Geometry
from tinyworld.objects.drawing.light import Light

Place = Callable[[Pen, Geometry, Light], None]


def draw_background(background: str, geometry: Geometry, light: Light, side: int) -> Layer:
    """Sky, sun or moon, clouds, and the place below them. The pen's frame is the image, y downwards from 0 to 1."""
    layer = Layer(side)
    layer.pixels[:] = sky(light.zenith, light.horizon, side)
    pen = _ImagePen(layer)
    _heaven(pen, geometry, light)
    PLACES[background](pen, geometry, light)
    return layer


class _ImagePen(Pen):
    """A pen whose frame is the image itself: x to the right and y downwards, both 0 to 1."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer, 0, 0, 1)
        self._axes = np.array([1.0, 1.0]) * layer.side


def _heaven(pen: Pen, g: Geometry, light: Light) -> None:
    x, y = g.sun
    clear = light.weather == "clear"
    if light.time == "night":
        for sx, sy, size in g.stars if clear else g.stars[:8] if light.weather == "snow" else ():
            pen.circle(sx, sy * 0.5, 0.004 + 0.004 * size, (236, 238, 250))
        moon = (248, 244, 214) if clear else (178, 180, 178)
        pen.circle(x, y, 0.06, moon)
        pen.circle(x + 0.028, y - 0.014, 0.05, light.zenith)
    elif light.time == "sunset":
        sun = (255, 226, 120) if clear else (250, 206, 150)
        pen.circle(x, g.horizon - 0.05, 0.085, sun)
    elif clear:
        pen.circle(x, y, 0.065, (255, 226, 80))
    _clouds(pen, g, light)


def _clouds(pen: Pen, g: Geometry, light: Light) -> None:
    if light.weather == "fog":
        return
    base = {"clear": 0.5, "rain": -0.32, "snow": 0.35}[light.weather]
    target = 255 if base > 0 else 20
    r, gr, b = (round(c + (target - c) * abs(base) * (0.35 if light.time == "night" else 1)) for c in light.zenith)
    count = 2 if light.weather == "clear" else 4
    for i, (cx, cy, size) in enumerate(g.clouds[:count]):
        x, y, s = (i + cx) / count, 0.06 + 0.22 * cy, 0.07 + 0.035 * size
        for dx, dy, radius in ((-0.9, 0.1, 0.5), (0, -0.2, 0.75), (0.85, 0.1, 0.55)):
            pen.ellipse(x + dx * s, y + dy * s, radius * s * 1.2, radius * s * 0.75, (r, gr, b))


def _ground(pen: Pen, top: float, near: Colour, far: Colour, light: Light, snow: float = 0.86) -> None:
    """Ground from `top` to the bottom of the image, in five bands from far to near."""
    for i in range(5):
        t = i / 4
        r, g, b = (round(f + (n - f) * t) for f, n in zip(far, near, strict=True))
        pen.box(-0.01, top + (1 - top) * i / 5, 1.01, 1.01, light.on((r, g, b), 0.7 * (1 - t), snow))


def _hill(pen: Pen, y: float, height: float, phase: float, waves: float, colour: Colour) -> None:
    xs = np.linspace(-0.02, 1.02, 27)
    ys = y - height * (0.5 + 0.5 * np.sin(2 * np.pi * (waves * xs + phase)))
    pen.polygon([(-0.02, 1.0), *zip(xs.tolist(), ys.tolist(), strict=True), (1.02, 1.0)], colour)


def _conifer(pen: Pen, x: float, foot: float, height: float, colour: Colour) -> None:
    half = height * 0.27
    for i in range(3):
        y, w = foot - height * (0.12 + 0.27 * i), half * (1 - 0.24 * i)
        pen.polygon(((x - w, y), (x, y - height * 0.42), (x + w, y)), colour)


def _beach(pen: Pen, g: Geometry, light: Light) -> None:
    h = g.horizon
    _ground(pen, h, (38, 134, 190), (74, 166, 206), light, snow=0.1)
    for i in range(3):
        y = h + 0.025 + 0.035 * i
        x = float(g.scenery[i, 0])
        pen.line(((x - 0.2, y), (x + 0.15, y)), 0.008, light.on((206, 232, 240), 0.4))
    shore = h + 0.13
    _hill(pen, shore + 0.02, 0.02, float(g.scenery[3, 0]), 1.5, light.on((250, 250, 246), 0.3, 0.5))
    _hill(pen, shore + 0.035, 0.02, float(g.scenery[3, 0]), 1.5, light.on((240, 214, 154), 0.2, 0.8))
    pen.box(-0.01, 0.86, 1.01, 1.01, light.on((228, 198, 136), 0, 0.8))
    for i in (0, 1):
        x = (0.06 + 0.1 * float(g.scenery[5 + i, 0])) if i == 0 else 0.94 - 0.1 * float(g.scenery[6, 0])
        _palm(pen, x, shore + 0.06, 0.34 + 0.08 * float(g.scenery[5 + i, 1]), light)


def _palm(pen: Pen, x: float, foot: float, height: float, light: Light) -> None:
    lean = 0.05 if x < 0.5 else -0.05
    top = (x + lean, foot - height)
    pen.line(((x, foot), (x + lean * 0.4, foot - height * 0.5), top), 0.026, light.on((140, 100, 62), 0.2, 0.1))
    leaf = light.on((40, 142, 74), 0.2, 0.3)
    for dx, dy in ((-0.14, 0.05), (-0.1, -0.06), (0.0, -0.09), (0.1, -0.06), (0.14, 0.05)):
        tip = (top[0] + dx, top[1] + dy)
        middle = (top[0] + dx * 0.55, top[1] + dy * 0.5 - 0.035)
        pen.polygon((top, middle, tip, (middle[0], middle[1] + 0.04)), leaf)


def _meadow(pen: Pen, g: Geometry, light: Light) -> None:
    h = g.horizon
    _hill(pen, h + 0.02, 0.13, float(g.scenery[0, 0]), 0.8, light.on((118, 186, 112), 0.8, 0.7))
    _hill(pen, h + 0.06, 0.1, float(g.scenery[1, 0]), 1.1, light.on((108, 190, 84), 0.5, 0.78))
    _ground(pen, h + 0.07, (92, 176, 62), (122, 200, 84), light)
    for x, y, hue, size in g.scenery[2:22]:
        colour = ((255, 240, 120), (255, 255, 255), (250, 150, 190))[int(hue * 3)]
        pen.circle(x, h + 0.12 + 0.36 * y, 0.008 + 0.005 * size, light.on(colour, 0.1, 0.5))


def _city(pen: Pen, g: Geometry, light: Light) -> None:
    h = g.horizon + 0.04
    walls: tuple[Colour, ...] = ((160, 138, 126), (136, 144, 158), (182, 166, 142), (120, 124, 136))
    lit = light.time == "night"
    pane = (252, 222, 120) if lit else light.on((212, 226, 236), 0.5)
    for i in range(7):
        tall, wide, tone, shift = (float(v) for v in g.scenery[i])
        x0, top, width = (i + 0.15 * shift) / 7 - 0.02, h - 0.16 - 0.3 * tall, 0.12 + 0.05 * wide
        pen.box(x0, top, x0 + width, h + 0.02, light.on(walls[int(tone * 4)], 0.6, 0.12))
        if light.weather == "snow":
            pen.box(x0 - 0.004, top - 0.012, x0 + width + 0.004, top + 0.008, light.on((245, 248, 252), 0.3))
        for k, y in enumerate(np.arange(top + 0.035, h - 0.04, 0.062)):
            for j in range(3):
                if not lit or (i * 5 + k * 3 + j * 7 + int(10 * tall)) % 3:
                    x = x0 + width * (0.14 + 0.28 * j)
                    pen.box(x, y, x + width * 0.16, y + 0.03, pane)
    pen.box(-0.01, h, 1.01, h + 0.07, light.on((186, 184, 180), 0.3, 0.8))
    pen.box(-0.01, h + 0.07, 1.01, 1.01, light.on((98, 100, 108), 0.05, 0.68))
    for i in range(5):
        x = (i + float(g.scenery[8, 0])) / 4.4 - 0.15
        pen.box(x, 0.925, x + 0.12, 0.945, light.on((240, 240, 232), 0, 0.3))


def _forest(pen: Pen, g: Geometry, light: Light) -> None:
    h = g.horizon
    for row, (count, height, colour, far) in enumerate(
        ((10, 0.36, (70, 128, 92), 0.8), (8, 0.42, (40, 104, 66), 0.45))
    ):
        tone = light.on(colour, far, 0.36)
        pen.box(-0.01, h - 0.02, 1.01, h + 0.1, tone)
        for i in range(count):
            shift, tall = g.scenery[row * 10 + i, :2]
            _conifer(
                pen,
                (i + float(shift) * 0.7) / (count - 1),
                h + 0.05 + 0.03 * row,
                height * (0.75 + 0.4 * float(tall)),
                tone,
            )
    _ground(pen, h + 0.06, (72, 104, 48), (88, 118, 58), light, snow=0.82)
    for x, y, _, size in g.scenery[12:20]:
        pen.ellipse(x, h + 0.16 + 0.3 * y, 0.02 + 0.02 * size, 0.008, light.on((112, 88, 52), 0.1, 0.4))


def _desert(pen: Pen, g: Geometry, light: Light) -> None:
    h = g.horizon
    x = 0.1 + 0.7 * float(g.scenery[0, 0])
    mesa = ((x - 0.2, h + 0.05), (x - 0.13, h - 0.16), (x + 0.1, h - 0.16), (x + 0.17, h + 0.05))
    pen.polygon(mesa, light.on((194, 106, 66), 0.6, 0.35))
    _hill(pen, h + 0.03, 0.07, float(g.scenery[1, 0]), 1.2, light.on((226, 166, 92), 0.5, 0.7))
    _hill(pen, h + 0.1, 0.07, float(g.scenery[2, 0]), 0.8, light.on((232, 178, 104), 0.3, 0.74))
    _ground(pen, h + 0.1, (222, 160, 84), (234, 180, 108), light, snow=0.76)
    for i, left in ((3, True), (4, False)):
        cx = (0.05 + 0.14 * float(g.scenery[i, 0])) if left else 0.95 - 0.14 * float(g.scenery[i, 0])
        _cactus(pen, cx, h + 0.13, 0.2 + 0.1 * float(g.scenery[i, 1]), light.on((60, 140, 76), 0.15, 0.3))


def _cactus(pen: Pen, x: float, foot: float, height: float, colour: Colour) -> None:
    pen.line(((x, foot), (x, foot - height)), 0.042, colour)
    pen.line(
        ((x, foot - height * 0.4), (x - 0.055, foot - height * 0.4), (x - 0.055, foot - height * 0.75)), 0.028, colour
    )
    pen.line(
        ((x, foot - height * 0.3), (x + 0.055, foot - height * 0.3), (x + 0.055, foot - height * 0.6)), 0.028, colour
    )


def _mountains(pen: Pen, g: Geometry, light: Light) -> None:
    h = g.horizon + 0.03
    for i, (far, colour) in enumerate(((0.8, (132, 146, 176)), (0.8, (132, 146, 176)), (0.5, (104, 116, 146)))):
        x, tall = float(g.scenery[i, 0]), float(g.scenery[i, 1])
        x = (0.1 + 0.2 * x, 0.7 + 0.2 * x, 0.35 + 0.3 * x)[i]
        height, half = 0.34 + 0.12 * tall, 0.34
        peak = h - height
        pen.polygon(((x - half, h + 0.04), (x, peak), (x + half, h + 0.04)), light.on(colour, far, 0.3))
        k = 0.34
        cap = [(x - half * k, peak + height * k * 1.1), (x, peak), (x + half * k, peak + height * k * 1.1)]
        zigzag = [(x + half * k * 0.4, peak + height * k * 0.75), (x, peak + height * k * 1.15),
                  (x - half * k * 0.45, peak + height * k * 0.75)]  # fmt: skip
        pen.polygon([*cap, *zigzag], light.on((250, 252, 255), far * 0.4))
    _ground(pen, h, (124, 142, 84), (146, 158, 108), light, snow=0.84)
    for x, y, _, size in g.scenery[4:13]:
        rock = light.on((138, 136, 138), 0.2, 0.4)
        cy, r = h + 0.06 + 0.34 * y, 0.012 + 0.018 * size
        pen.polygon(((x - r, cy), (x - r * 0.5, cy - r), (x + r * 0.5, cy - r * 1.1), (x + r, cy)), rock)


PLACES: dict[str, Place] = {
    "beach": _beach,
    "meadow": _meadow,
    "city": _city,
    "forest": _forest,
    "desert": _desert,
    "mountains": _mountains,
}
