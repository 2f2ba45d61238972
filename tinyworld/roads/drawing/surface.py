"""Effects of the road's surface, the weather on it and the headlights on the pixels of the road.

All of it works on the finished backdrop, weighted by how much of each pixel is road: nothing else is touched.
"""

from __future__ import annotations

import cv2
import numpy as np

from tinyworld.drawing.canvas import Floats
from tinyworld.roads.drawing.geometry import Camera, Geometry
from tinyworld.roads.drawing.light import SNOW, Light
from tinyworld.roads.world import Scene


def wetness(scene: Scene) -> float:
    """How much of a mirror the road is, 0 to 1."""
    if scene.surface == "snowy":
        return 0.0
    if scene.surface == "wet":
        return 1.0
    return 0.45 if scene.weather == "rain" else 0.0


def draw_surface(scene: Scene, g: Geometry, light: Light, backdrop: Floats, road: Floats) -> Floats:
    """The backdrop (h x w x 3) with its road (coverage h x w x 1) as the surface and the weather make it."""
    height, width = backdrop.shape[:2]
    x, z = Camera(width, height, g.horizon, g.bend).ground()
    picture = backdrop.copy()
    if scene.surface == "cobbled":
        picture *= 1 + road * (_cobbles(g, width, height) - 1)
    if (wet := wetness(scene)) > 0:
        picture *= 1 - 0.38 * wet * road
        mirror = wet * np.clip(0.22 + z / 45, 0, 0.62)
        if scene.surface == "wet":
            mirror = np.maximum(mirror, 0.68 * _puddles(g, x, z))
        sky = np.array(light.horizon, np.float32) * 0.62 + np.array(light.zenith, np.float32) * 0.38
        picture += (road * mirror[..., None]) * (sky - picture)
    under = _snow(scene, g, x, z)
    if under is not None:
        veil = np.vectorize(light.haze, otypes=[np.float32])(z[:, 0])[:, None, None]
        white = SNOW * light.tint
        white = white + (np.array(light.horizon, np.float32) - white) * veil
        picture += road * under[..., None] * (white - picture)
    return picture


def headlights(g: Geometry, light: Light, backdrop: Floats, ground: Floats) -> Floats:
    """The backdrop with the own beam on its ground (coverage h x w x 1): an ellipse ahead, warm."""
    if not light.night:
        return backdrop
    height, width = backdrop.shape[:2]
    x, z = Camera(width, height, g.horizon, g.bend).ground()
    across = np.exp(-((x / (0.9 + 0.24 * z)) ** 2))
    along = np.clip((z - 1.0) / 2.5, 0, 1) * np.exp(-z / 9.0)
    gain = (1 - 0.4 * light.haze(6.0)) * across * along
    warm = np.array((2.7, 2.5, 1.8), np.float32)
    return np.asarray(backdrop * (1 + ground * gain[..., None] * warm), np.float32)


def add_reflection(backdrop: Floats, thing: Floats, opaque: Floats, foot: int, weight: Floats) -> None:
    """Add to a wet road the mirror image of a thing with colours `thing` where `opaque`, standing at row `foot`.

    All of one height and width; `weight` (h x w) is how much of it the road gives back. Works in place.
    """
    height = backdrop.shape[0]
    deep = min(foot, height - foot)
    if deep < 2:
        return
    above = slice(foot - deep, foot)
    image = cv2.blur(np.ascontiguousarray(thing[above][::-1]), (1, 5))
    share = cv2.blur(np.ascontiguousarray(opaque[above][::-1]), (1, 5))
    below = slice(foot, foot + deep)
    k = (weight[below] * share)[..., None]
    backdrop[below] += k * (image - backdrop[below])


def _cobbles(g: Geometry, width: int, height: int) -> Floats:
    """Brightness of stones and joints (h x w x 1, around 1), fading out with distance."""
    x, z = Camera(2 * width, 2 * height, g.horizon, g.bend).ground()
    row = np.floor(z / 0.26)
    column = x / 0.3 + 0.5 * (row % 2)
    u, v = column % 1.0, (z / 0.26) % 1.0
    joint = (np.minimum(u, 1 - u) < 0.12) | (np.minimum(v, 1 - v) < 0.15)
    stone = 1.04 + 0.24 * (np.sin(np.floor(column) * 12.9898 + row * 78.233) * 43758.5453 % 1.0 - 0.5)
    fade = np.clip(1.2 - z / 9, 0, 1)
    pattern = (1 + (np.where(joint, 0.68, stone) - 1) * fade).astype(np.float32)
    return np.asarray(cv2.resize(pattern, (width, height), interpolation=cv2.INTER_AREA)[..., None], np.float32)


def _puddles(g: Geometry, x: Floats, z: Floats) -> Floats:
    shine = np.zeros_like(x)
    for place, depth, size in g.puddles:
        x0, z0 = g.left + (g.right - g.left) * place, 2.6 + 7 * depth
        across, along = 0.45 + 0.5 * size, 0.3 + 0.1 * z0
        distance = ((x - x0) / across) ** 2 + ((z - z0) / along) ** 2
        shine = np.maximum(shine, np.clip(2.2 * (1 - distance), 0, 1))
    return shine.astype(np.float32)


def _snow(scene: Scene, g: Geometry, x: Floats, z: Floats) -> Floats | None:
    """Share of the road under snow (h x w): all of it except the wheels' tracks, or its rims while it snows."""
    lanes = [0.0] + ([g.left / 2 - 0.9] if g.left < -3.7 else [])
    wheels = np.min([np.abs(np.abs(x - lane) - 0.72) for lane in lanes], axis=0)
    tracks = np.clip((wheels - 0.16) / 0.14, 0, 1)
    if scene.surface == "snowy":
        return np.asarray(0.42 + 0.5 * tracks, np.float32)
    if scene.weather == "snow":
        rim = np.minimum(x - g.left, g.right - x)
        share = 0.16 * tracks + 0.34 * np.clip(1 - rim / 0.9, 0, 1)
        return np.asarray(share * (0.5 if scene.surface == "wet" else 1.0), np.float32)
    return None
