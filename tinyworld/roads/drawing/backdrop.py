"""The sky, the backdrop, the ground, and the road with its markings."""

from __future__ import annotations

from itertools import pairwise

import cv2
import numpy as np

from tinyworld.drawing.canvas import Colour
from tinyworld.drawing.sky import sky
from tinyworld.roads.drawing.canvas import FINE, NUMBER_OF, Canvas, MetrePen
from tinyworld.roads.drawing.geometry import Camera, Geometry
from tinyworld.roads.drawing.light import Light
from tinyworld.roads.world import Scene

ASPHALT, COBBLES = (96, 98, 106), (128, 116, 106)
PAVING = (192, 184, 174)
GRASS: dict[str, Colour] = {
    "spring": (126, 196, 92), "summer": (84, 158, 64), "autumn": (176, 152, 70), "winter": (148, 142, 112),
}  # fmt: skip
WOODS: dict[str, Colour] = {
    "spring": (150, 190, 120), "summer": (58, 118, 66), "autumn": (190, 112, 52), "winter": (118, 104, 94),
}  # fmt: skip
_BANDS = (0.9, 2.0, 2.5, 3.2, 4.0, 5.0, 6.5, 8.5, 11.0, 15.0, 20.0, 28.0, 40.0, 60.0, 90.0)
_MARKING = (236, 236, 230)


def draw_backdrop(scene: Scene, g: Geometry, light: Light, canvas: Canvas, camera: Camera) -> None:
    """Everything that nothing can stand behind."""
    _sky(scene, g, light, canvas)
    _skyline(scene, g, light, canvas, camera)
    _ground(scene, g, light, canvas, camera)
    _markings(scene, g, light, canvas, camera)


def _sky(scene: Scene, g: Geometry, light: Light, canvas: Canvas) -> None:
    height, width = canvas.pixels.shape[:2]
    column = sky(light.zenith, light.horizon, round(1.6 * g.horizon * height))[:, :1, :3]
    canvas.pixels[..., :3] = light.horizon
    canvas.pixels[: len(column), :, :3] = column[:height]
    canvas.pixels[..., 3] = number = NUMBER_OF["sky"]
    place = (int(g.sun[0] * width), int(g.sun[1] * height))
    if light.night:
        for x, y, size in g.stars if light.weather == "clear" else ():
            at = (int(x * width), int(y * g.horizon * height))
            cv2.circle(canvas.pixels, at, 1 + round(size), (230, 232, 246, number), -1)
        if light.weather in ("clear", "snow"):
            cv2.circle(canvas.pixels, place, height // 22, (246, 242, 214, number), -1)
            shade = tuple(int(v) for v in canvas.pixels[place[1], max(0, place[0] - height // 8), :3])
            beside = (place[0] + height // 50, place[1] - height // 90)
            cv2.circle(canvas.pixels, beside, height // 26, (*shade, number), -1)
    elif light.weather == "clear":
        low = light.time == "sunset"
        at = (place[0], int((g.horizon - 0.09) * height)) if low else place
        cv2.circle(canvas.pixels, at, height // (13 if low else 20), (255, 228, 120, number), -1)
    _clouds(g, light, canvas)


def _clouds(g: Geometry, light: Light, canvas: Canvas) -> None:
    if light.weather == "fog":
        return
    height, width = canvas.pixels.shape[:2]
    count, target, share = {"clear": (2, 255, 0.55), "rain": (4, 20, 0.3), "snow": (4, 255, 0.3)}[light.weather]
    share *= 0.3 if light.night else 1.0
    colour = tuple(round(c + (target - c) * share) for c in light.zenith)
    for i, (x, y, size) in enumerate(g.clouds[:count]):
        at = np.array(((i + x) / count * width, (0.05 + 0.2 * y) * height))
        radius = (0.05 + 0.03 * size) * height
        for dx, dy, r in ((-1.1, 0.15, 0.7), (0.0, -0.2, 1.0), (1.05, 0.15, 0.75)):
            centre = at + radius * np.array((dx, dy))
            axes = (int(radius * r * 1.3), int(radius * r * 0.75))
            cv2.ellipse(canvas.pixels, centre.astype(int).tolist(), axes, 0, 0, 360, (*colour, NUMBER_OF["sky"]), -1)


def _skyline(scene: Scene, g: Geometry, light: Light, canvas: Canvas, camera: Camera) -> None:
    """Far blocks, a line of trees, or hills."""
    height, width = canvas.pixels.shape[:2]
    foot = g.horizon * height + FINE
    city = scene.place == "city"
    number = NUMBER_OF["building" if city else "vegetation"]
    if city:
        for i, (tall, wide) in enumerate(g.skyline):
            x0, across = i / 16 * width - 8, width / 16 * (0.9 + 0.5 * wide)
            top = foot - height * (0.05 + 0.11 * tall)
            box = np.array(((x0, foot), (x0, top), (x0 + across, top), (x0 + across, foot)))
            canvas.fill(box, light.on((150, 150, 160), 75.0 + 20 * float(wide), snow=0.2), number)
        return
    rows = ((0.13, 90.0), (0.055, 55.0)) if scene.place == "countryside" else ((0.075, 60.0),)
    for k, (tall, z) in enumerate(rows):
        xs = np.linspace(-0.02, 1.02, 40)
        waves = (1.3 + k, 7.0) if scene.place == "countryside" else (5.0, 13.0)
        ys = sum(
            (0.6, 0.4)[j] * (0.5 + 0.5 * np.sin(2 * np.pi * (w * xs + g.skyline[2 * k + j, 0])))
            for j, w in enumerate(waves)
        )
        ridge = np.stack((xs * width, foot - height * tall * (0.35 + 0.65 * ys)), axis=1)
        outline = np.concatenate((ridge, [(1.02 * width, foot), (-0.02 * width, foot)]))
        colour = GRASS[scene.season] if k == 0 and len(rows) == 2 else WOODS[scene.season]
        canvas.fill(outline, light.on(colour, z, snow=0.6), number)


def _ground(scene: Scene, g: Geometry, light: Light, canvas: Canvas, camera: Camera) -> None:
    """In bands from far to near: the roadside, the sidewalks, the road, the kerbs."""
    beside = ("sidewalk", PAVING) if scene.place == "city" else ("vegetation", GRASS[scene.season])
    walk = (206, 186, 150) if scene.place == "countryside" else PAVING
    left, right = g.edges
    strips = (
        (beside[0], beside[1], -400.0, 400.0, 0.85),
        ("sidewalk", walk, left, right, 0.72),
        ("sidewalk", (226, 224, 218), g.left - 0.16, g.right + 0.16, 0.5),
        ("road", COBBLES if scene.surface == "cobbled" else ASPHALT, g.left, g.right, 0.0),
    )
    for near, far in reversed(list(pairwise(_BANDS))):
        z = (near * far) ** 0.5
        for name, colour, x0, x1, snow in strips:
            corners = np.array(((x0, 0, near), (x0, 0, far), (x1, 0, far), (x1, 0, near)), np.float64)
            canvas.fill(camera.project(corners), light.on(colour, z, snow=snow), NUMBER_OF[name])


def _markings(scene: Scene, g: Geometry, light: Light, canvas: Canvas, camera: Camera) -> None:
    pen = MetrePen(canvas, camera, light, NUMBER_OF["road"])
    if scene.surface != "cobbled":
        middle = (g.left - 0.2 + g.right - 1.4) / 2 if g.left < -3.0 else None
        for z in np.arange(2.0, 42.0, 3.4) if middle is not None else ():
            assert middle is not None
            pen.face(((middle - 0.08, 0, z), (middle - 0.08, 0, z + 1.7), (middle + 0.08, 0, z + 1.7),
                      (middle + 0.08, 0, z)), _MARKING, snow=0.5)  # fmt: skip
        for x in (g.left + 0.2, g.right - 0.3):
            for near, far in pairwise(_BANDS):
                pen.face(((x, 0, near), (x, 0, far), (x + 0.1, 0, far), (x + 0.1, 0, near)), _MARKING, snow=0.5)
    if scene.traffic_light != "none" or scene.where == "crossing":
        near, far = g.crossing, g.crossing + 1.9
        ground = COBBLES if scene.surface == "cobbled" else ASPHALT
        x0, x1 = g.left + 0.15, g.right - 0.15  # the kerb bends between them
        pen.face(((x0, 0, near), (x0, 0, far), (x1, 0, far), (x1, 0, near)), ground)
        for x in np.arange(g.left + 0.25, g.right - 0.35, 0.82):
            pen.face(((x, 0, near), (x, 0, far), (x + 0.42, 0, far), (x + 0.42, 0, near)), _MARKING, snow=0.4)
