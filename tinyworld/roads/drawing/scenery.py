"""Things along the road: buildings with their walls, trees, hedges, street lamps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinyworld.drawing.canvas import Colour
from tinyworld.roads.drawing.backdrop import WOODS
from tinyworld.roads.drawing.canvas import NUMBER_OF, Canvas, MetrePen
from tinyworld.roads.drawing.geometry import Camera, Geometry
from tinyworld.roads.drawing.light import Light
from tinyworld.roads.world import Scene

Drawing = tuple[float, Callable[[], None]]  # z, and what draws a thing there
_WALLS: dict[str, tuple[Colour, ...]] = {
    "brick": ((172, 84, 62), (150, 70, 54), (186, 102, 76)),
    "stone": ((150, 148, 142), (168, 162, 150), (132, 132, 132)),
    "plaster": ((240, 226, 190), (246, 240, 228), (236, 204, 170)),
    "glass": ((96, 138, 164), (112, 152, 172), (82, 124, 154)),
}
_ROOFS: dict[str, Colour] = {
    "brick": (110, 66, 58), "stone": (88, 92, 104), "plaster": (176, 92, 66), "glass": (70, 84, 98),
}  # fmt: skip
_PANE: dict[str, Colour] = {
    "brick": (206, 222, 232), "stone": (96, 112, 132), "plaster": (120, 146, 168), "glass": (182, 214, 230),
}  # fmt: skip
_LIT = (255, 214, 112)
_CROWNS: dict[str, tuple[Colour, Colour]] = {
    "spring": ((236, 170, 196), (250, 206, 220)),
    "summer": ((56, 128, 58), (86, 158, 70)),
    "autumn": ((206, 104, 40), (232, 150, 48)),
    "winter": ((112, 94, 84), (140, 122, 110)),
}
_BARK, _POLE = (94, 70, 54), (74, 78, 84)


def scenery(scene: Scene, g: Geometry, light: Light, canvas: Canvas, camera: Camera) -> list[Drawing]:
    """Everything along the road, to be drawn from far to near."""
    drawings: list[Drawing] = []
    building, plant, void = (
        MetrePen(canvas, camera, light, NUMBER_OF[name]) for name in ("building", "vegetation", "void")
    )
    for side in (-1, 1):
        edge = g.edges[0] if side < 0 else g.edges[1]
        drawings += _row_of_houses(scene, g, building, side, edge)
        drawings += _row_of_trees(scene, g, plant, side, edge)
        if scene.place != "countryside":
            drawings += [(z, _lamp(void, side, edge - 1.75 * side, z)) for z in ((12.5, 27.0) if side > 0 else (19.0,))]
        if scene.place == "suburb":
            for z in np.arange(34.0, 3.0, -3.2):
                drawings.append((float(z) + 1.5, _hedge(plant, scene, edge + 0.35 * side, float(z))))
    return drawings


def _row_of_houses(scene: Scene, g: Geometry, pen: MetrePen, side: int, edge: float) -> list[Drawing]:
    drawings: list[Drawing] = []
    z = 5.0 if scene.place == "city" else 8.0
    for draws in g.houses[0 if side < 0 else 1]:
        tall, long, tone, gap, _ = (float(v) for v in draws)
        if scene.place == "city":
            length, height, away, step = 5.5 + 5 * long, 5.5 + 7.5 * tall, 0.3, 0.4 * gap
        elif scene.place == "suburb":
            length, height, away, step = 6.0 + 2.5 * long, 3.2 + 1.4 * tall, 2.4 + 1.2 * gap, 3.0 + 4.0 * gap
        else:
            length, height, away, step = 7.0 + 3 * long, 3.0 + tall, 4.0 + 7 * gap, 9.0 + 16.0 * gap
        if z < 60:
            wall = _WALLS[scene.buildings][int(tone * 3)]
            x = edge + away * side
            drawings.append((z + length / 2, _house(pen, scene, (x, side, z, length, height), wall, draws)))
        z += length + step
    return drawings


def _house(
    pen: MetrePen, scene: Scene, place: tuple[float, int, float, float, float], wall: Colour, draws: np.ndarray
) -> Callable[[], None]:
    x, side, z, length, height = place
    city = scene.place == "city"
    depth = (9.0 if city else 5.5) * side
    dark: Colour = (int(wall[0] * 0.78), int(wall[1] * 0.78), int(wall[2] * 0.78))

    def draw() -> None:
        pen.face(((x, 0, z), (x, 0, z + length), (x, height, z + length), (x, height, z)), wall)
        pen.face(((x, 0, z), (x + depth, 0, z), (x + depth, height, z), (x, height, z)), dark)
        _windows(pen, scene, place, depth, draws)
        if city:
            _cornice(pen, scene, place, depth)
        else:
            _roof(pen, scene, place, depth)

    return draw


def _windows(
    pen: MetrePen, scene: Scene, place: tuple[float, int, float, float, float], depth: float, draws: np.ndarray
) -> None:
    """Panes on the wall along the road and on the one that faces the camera; at night two in three are lit."""
    x, _, z, length, height = place
    glass = scene.buildings == "glass"
    across, up = (1.5, 1.9) if glass else (2.1, 2.5)
    wide, tall = (1.15, 1.45) if glass else (1.0, 1.25)
    for row, v in enumerate(np.arange(0.95, height - tall - 0.1, up)):
        for column, w in enumerate(np.arange(0.55, length - wide - 0.2, across)):
            shade = _pane(scene, row, column, draws)
            a, b = z + w, z + w + wide
            pen.face(((x, v, a), (x, v, b), (x, v + tall, b), (x, v + tall, a)), shade[0], glow=shade[1])
        for column, w in enumerate(np.arange(0.5, abs(depth) - wide - 0.2, across)):
            shade = _pane(scene, row, column + 5, draws)
            a, b = (x + np.sign(depth) * w, x + np.sign(depth) * (w + wide))
            pen.face(((a, v, z), (b, v, z), (b, v + tall, z), (a, v + tall, z)), shade[0], glow=shade[1])


def _pane(scene: Scene, row: int, column: int, draws: np.ndarray) -> tuple[Colour, bool]:
    if scene.time != "day" and (row * 3 + column * 7 + int(17 * draws[4])) % 3 < (2 if scene.time == "night" else 1):
        return _LIT, True
    return _PANE[scene.buildings], False


def _cornice(pen: MetrePen, scene: Scene, place: tuple[float, int, float, float, float], depth: float) -> None:
    x, side, z, length, height = place
    roof, top, out = _ROOFS[scene.buildings], height + 0.35, x - 0.15 * side
    pen.face(((out, height, z), (out, height, z + length), (out, top, z + length), (out, top, z)), roof, snow=0.8)
    pen.face(((out, height, z), (x + depth, height, z), (x + depth, top, z), (out, top, z)), roof, snow=0.8)


def _roof(pen: MetrePen, scene: Scene, place: tuple[float, int, float, float, float], depth: float) -> None:
    """A gable towards the camera under a roof that slopes to the road."""
    x, side, z, length, height = place
    wall, roof, top, middle = _WALLS[scene.buildings][1], _ROOFS[scene.buildings], height + 2.1, x + depth / 2
    out, low = x - 0.4 * side, height - 0.2
    pen.face(((x, height, z), (x + depth, height, z), (middle, top, z)), wall)
    pen.face(((out, low, z - 0.3), (out, low, z + length + 0.3), (middle, top, z + length + 0.3),
              (middle, top, z - 0.3)), roof, snow=0.85)  # fmt: skip


def _row_of_trees(scene: Scene, g: Geometry, pen: MetrePen, side: int, edge: float) -> list[Drawing]:
    drawings: list[Drawing] = []
    step = {"city": 8.5, "suburb": 7.5, "countryside": 6.5}[scene.place]
    for i, (jitter, tall, away, shape) in enumerate(g.trees[0 if side < 0 else 1]):
        z = (7.5 if side > 0 else 10.5) + step * (i + 0.5 * float(jitter))
        x = edge + side * (-0.35 if scene.place == "city" else 0.9 + 3.2 * float(away))
        drawings.append((z, _tree(pen, scene, (x, z), 3.6 + 2.2 * float(tall), float(shape))))
    return drawings


def _tree(pen: MetrePen, scene: Scene, foot: tuple[float, float], height: float, shape: float) -> Callable[[], None]:
    dark, bright = _CROWNS[scene.season]

    def draw() -> None:
        stand = pen.standing(*foot, flipped=shape < 0.5)
        stand.limb(((0.0, 0.0), (0.05, height * 0.6)), 0.26, _BARK)
        r = height * 0.24
        for u, v, k in ((-0.75, 0.58, 0.8), (0.75, 0.6, 0.8), (0.0, 0.76, 1.05), (0.0, 0.56, 0.9)):
            stand.ellipse(u * r, height * v, r * k, r * k * 0.95, dark, snow=0.5)
        for u, v, k in ((-0.6, 0.68, 0.5), (0.15, 0.84, 0.6), (0.7, 0.66, 0.4)):
            stand.ellipse(u * r, height * v, r * k, r * k * 0.8, bright, snow=0.85)
        if scene.season == "winter":
            for u, v in ((-0.9, 0.7), (-0.35, 0.9), (0.3, 0.92), (0.9, 0.72)):
                stand.limb(((0.0, height * 0.42), (u * r * 0.5, height * (v - 0.14)), (u * r, height * v)), 0.1, _BARK)

    return draw


def _hedge(pen: MetrePen, scene: Scene, x: float, z: float) -> Callable[[], None]:
    colour = WOODS[scene.season]
    top: Colour = (min(255, colour[0] + 24), min(255, colour[1] + 24), min(255, colour[2] + 16))

    def draw() -> None:
        far, out = z + 2.7, x + (0.7 if x > 0 else -0.7)
        pen.face(((x, 0, z), (x, 0, far), (x, 0.85, far), (x, 0.85, z)), colour, snow=0.25)
        pen.face(((x, 0, z), (out, 0, z), (out, 0.85, z), (x, 0.85, z)), colour, snow=0.25)
        pen.face(((x, 0.85, z), (x, 0.85, far), (out, 0.85, far), (out, 0.85, z)), top, snow=0.9)

    return draw


def _lamp(pen: MetrePen, side: int, x: float, z: float) -> Callable[[], None]:
    def draw() -> None:
        stand = pen.standing(x, z, flipped=side > 0)
        stand.limb(((0, 0), (0, 4.6), (0.25, 4.9), (0.9, 4.95)), 0.13, _POLE)
        stand.ellipse(0.95, 4.86, 0.34, 0.14, (255, 240, 190), glow=pen.light.time != "day")

    return draw
