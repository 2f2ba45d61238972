"""Render a scene from its factors and its geometry seed; the same pixels every time.

Layers from back to front: place, the object's shadow, object, companion; then the light and haze on
each, the style over all, rain or snow in front. `permitted_mask` states what a change of one factor
may touch, and the tests hold the renderer to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from tinyworld.drawing import styles
from tinyworld.drawing.canvas import Floats, Image, Layer, Pen
from tinyworld.objects.drawing.companions import draw_companion
from tinyworld.objects.drawing.geometry import Geometry, geometry_of
from tinyworld.objects.drawing.light import Light
from tinyworld.objects.drawing.objects import draw_object, surface
from tinyworld.objects.drawing.places import draw_background
from tinyworld.objects.world import FACTOR_VALUES, Scene

Mask = NDArray[np.bool_]

_HALF_WIDTH = {"small": 0.215, "large": 0.315}  # of the image: half an object's width
_TALL = {"balloon": 0.96, "house": 0.96, "bird": 0.98}  # shrinks the classes that stand higher than they are wide
_LIFT = {"balloon": 0.035}  # how far above the ground, in image heights
_OUTLINE = (40, 40, 50)
_RIM = (118, 120, 130)  # of black things, which would drown in the night


@dataclass(frozen=True, slots=True)
class Rendering:
    """An image with the visible masks of its object and companion."""

    image: Image  # H x W x 3, RGB
    object_mask: Mask  # H x W
    companion_mask: Mask  # H x W, all false without a companion


class _Layers(NamedTuple):
    """Averaged layers at the final size: colours weighted by opacity (0 to 255) and opacity (0 to 1)."""

    thing: tuple[Floats, Floats]
    shadow: Floats
    companion: tuple[Floats, Floats]


def render(scene: Scene, size: int = 128) -> Rendering:
    """Render a scene as a square image of `size` pixels a side."""
    geometry, light = geometry_of(scene), Light(scene.weather, scene.time)
    layers = _layers(scene, geometry, size)
    picture = _compose(scene, geometry, light, layers, size)
    thing, companion = (np.asarray(a[..., 0] * 255, np.uint8) for a in (layers.thing[1], layers.companion[1]))
    if scene.style == "painting":
        picture = styles.paint(picture, geometry.strokes)
        thing, companion = styles.wave(thing, geometry.strokes), styles.wave(companion, geometry.strokes)
    elif scene.style == "sketch":
        picture = styles.pencil(picture, geometry.strokes)
    if scene.weather in ("rain", "snow"):
        night = scene.time == "night"
        picture = styles.precipitation(picture, scene.weather, scene.style, night, geometry.drops)
    return Rendering(picture, (thing > 127) & (companion <= 127), companion > 127)


def permitted_mask(scene: Scene, field: str, size: int = 128) -> Mask:
    """Pixels (size x size) that may change when this factor of the scene is set to any of its values."""
    if field in ("weather", "time", "style"):
        return np.ones((size, size), np.bool_)
    spread = round(size / 128 * (styles.REACH[scene.style] + 1)) * 2 + 1
    kernel = np.ones((spread, spread), np.uint8)
    if field == "background":
        opaque_pixels = _footprint(scene, size, opaque=True)
        return ~np.asarray(cv2.erode(opaque_pixels, kernel, borderValue=255) > 0, np.bool_)
    touched = np.zeros((size, size), np.uint8)
    for value in FACTOR_VALUES[field]:
        touched |= _footprint(scene.changed(**{field: value}), size, of=field)  # type: ignore[arg-type]
    return np.asarray(cv2.dilate(touched, kernel) > 0, np.bool_)


def _footprint(scene: Scene, size: int, *, of: str = "", opaque: bool = False) -> Image:
    """Where the object and its shadow or the companion are (0 or 255); with `opaque`, where they hide the place."""
    geometry = geometry_of(scene)
    layers = _layers(scene, geometry, size)
    if opaque:
        there = np.maximum(layers.thing[1], layers.companion[1]) > 0.999
    elif of.startswith("companion") or of == "relation":
        there = layers.companion[1] > 0
    else:
        there = np.maximum(layers.thing[1], layers.shadow) > 0
    footprint = np.asarray(there[..., 0] * 255, np.uint8)
    return styles.wave(footprint, geometry.strokes) if scene.style == "painting" else footprint


def _layers(scene: Scene, g: Geometry, size: int) -> _Layers:
    side = 2 * size
    half = _HALF_WIDTH[scene.size] * g.scale * _TALL.get(scene.label, 1.0)
    foot = g.y - _LIFT.get(scene.label, 0.0)
    width = max(1, round(side / 200))
    thing = Layer(side)
    draw_object(scene.label, scene.silhouette, thing, g.x, foot, half, g.flipped)
    thing.paint(surface(scene.colour, scene.pattern, side, g.x, foot, half))
    thing.outline(_RIM if scene.colour == "black" else _OUTLINE, width)
    shadow, companion = Layer(side), Layer(side)
    reach = 0.5 if scene.label == "balloon" else 1.0
    Pen(shadow, g.x, g.y, half).ellipse(0, 0.0, reach, 0.1 * reach, (0, 0, 0))
    if scene.companion != "none":
        x = g.companion_x if scene.relation == "left" else 1 - g.companion_x
        draw_companion(scene.companion, scene.companion_colour, companion, x, g.companion_y, g.companion_flipped)
        companion.outline(_OUTLINE, width)
    return _Layers(thing.average(), shadow.average()[1], companion.average())


def _compose(scene: Scene, g: Geometry, light: Light, layers: _Layers, size: int) -> Image:
    place = draw_background(scene.background, g, light, 2 * size).pixels[..., :3]
    picture = cv2.resize(place, (size, size), interpolation=cv2.INTER_AREA).astype(np.float32)
    if scene.label == "boat":
        water = np.array(light.on((58, 140, 190), 0.1), np.float32)
        picture += (water - picture) * (0.85 * layers.shadow)
    else:
        picture *= 1 - 0.38 * layers.shadow
    fall = np.linspace(1.1, 0.86, size, dtype=np.float32)[:, None, None]
    horizon = np.array(light.horizon, np.float32)
    for (colours, alpha), gradient in ((layers.thing, fall), (layers.companion, 1.0)):
        lit = colours * light.object_tint * gradient
        lit += (horizon * alpha - lit) * light.object_haze
        picture = picture * (1 - alpha) + lit
    return np.asarray(np.clip(picture, 0, 255), np.uint8)
