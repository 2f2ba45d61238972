"""Render the image and masks of a driving scene from its factors and its geometry seed.

The backdrop (sky, ground, road) is drawn first with its surface, then everything on it from far to near, then glowing
lights, the style, rain or snow. `permitted_mask` states which pixels a change of one look may affect, and tests verify
it. Masks depend on the shapes only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from tinyworld.drawing import styles
from tinyworld.drawing.canvas import Floats, Image
from tinyworld.roads import world
from tinyworld.roads.drawing.backdrop import draw_backdrop
from tinyworld.roads.drawing.canvas import FINE, FIRST_INSTANCE, NUMBER_OF, Canvas, MetrePen, coverage, show
from tinyworld.roads.drawing.geometry import Camera, Geometry, Pedestrian, Vehicle, geometry_of
from tinyworld.roads.drawing.light import Light
from tinyworld.roads.drawing.people import draw_pedestrian, draw_traffic_light
from tinyworld.roads.drawing.scenery import Drawing, scenery
from tinyworld.roads.drawing.surface import add_reflection, draw_surface, headlights, wetness
from tinyworld.roads.drawing.vehicles import draw_vehicle
from tinyworld.roads.world import Scene

Mask = NDArray[np.bool_]
VEHICLE, PEDESTRIAN = 1, 2  # instance numbers of those that the scene names; geometry's own follow


@dataclass(frozen=True, slots=True)
class Rendering:
    """An image, its class mask and its instances."""

    image: Image  # H x W x 3, RGB
    classes: Image  # H x W, indices into `world.CLASSES`
    instances: Image  # H x W, 0 for none; 1 the named vehicle, 2 the named pedestrian, then others
    instance_classes: dict[int, str]  # of every instance that shows in the mask


@dataclass(frozen=True, slots=True)
class _Drawing:
    """The two canvases of a scene and its things by instance number."""

    backdrop: Canvas
    things: Canvas
    instances: dict[int, Vehicle | Pedestrian]


def render(scene: Scene, width: int = 128, height: int = 128) -> Rendering:
    """Render a scene; the height fixes the frame, a wider image shows more on both sides."""
    geometry, light = geometry_of(scene), Light(scene.weather, scene.time)
    drawing = _draw(scene, geometry, light, width, height)
    image = _compose(scene, geometry, light, drawing)
    most = show(np.where(drawing.things.numbers > 0, drawing.things.numbers, drawing.backdrop.numbers))
    classes, instances = (most - 1).astype(np.uint8), np.zeros_like(most)
    labels: dict[int, str] = {}
    for number, thing in drawing.instances.items():
        instance = most == number + FIRST_INSTANCE
        if instance.any():
            labels[number] = "vehicle" if isinstance(thing, Vehicle) else "pedestrian"
            classes[instance], instances[instance] = world.CLASSES.index(labels[number]), number
    return Rendering(image, classes, instances, labels)


def colour_map(classes: Image) -> Image:
    """A class mask (h x w) in the colours of `world.PALETTE` (h x w x 3)."""
    return np.asarray(np.array(world.PALETTE, np.uint8)[classes], np.uint8)


def permitted_mask(scene: Scene, field: str, width: int = 128, height: int = 128) -> Mask:
    """Pixels (height x width) that may change when this factor of the scene is set to any of its values.

    `traffic_light` counts as a look of scenes that have one, as long as it stays.
    """
    if field in ("weather", "time", "style"):
        return np.ones((height, width), np.bool_)
    geometry, light = geometry_of(scene), Light(scene.weather, scene.time)
    drawing = _draw(scene, geometry, light, width, height)
    things, ground = drawing.things.numbers, drawing.backdrop.numbers
    number = {
        "surface": NUMBER_OF["road"], "season": NUMBER_OF["vegetation"], "buildings": NUMBER_OF["building"],
        "traffic_light": NUMBER_OF["traffic light"], "vehicle_colour": FIRST_INSTANCE + VEHICLE,
        "clothes": FIRST_INSTANCE + PEDESTRIAN,
    }[field]  # fmt: skip
    seen_through = coverage(things > 0) < 1  # there the backdrop shows as averaged before anything stood on it
    touched: Mask = (coverage(things == number) > 0) | ((coverage(ground == number) > 0) & seen_through)
    if number >= FIRST_INSTANCE and touched.any() and wetness(scene) > 0:
        foot = _foot(drawing, geometry, number - FIRST_INSTANCE)
        columns = np.any(touched, axis=0)
        below = np.arange(height)[:, None] >= foot
        touched |= below & columns[None, :] & (coverage(ground == NUMBER_OF["road"]) > 0) & seen_through
    reach = round(height / 128 * styles.REACH[scene.style])
    return np.asarray(cv2.dilate(touched.astype(np.uint8), np.ones((2 * reach + 1,) * 2, np.uint8)) > 0, np.bool_)


def _things(scene: Scene, g: Geometry) -> dict[int, Vehicle | Pedestrian]:
    """All vehicles and pedestrians by instance number; a number does not depend on which others there are."""
    things: dict[int, Vehicle | Pedestrian] = {}
    if scene.vehicle != "none":
        things[VEHICLE] = Vehicle(scene.vehicle, scene.vehicle_colour, 0.0, g.vehicle_z, False)
    if scene.pedestrian != "none":
        size, flipped, look = (float(v) for v in g.pedestrian)
        things[PEDESTRIAN] = Pedestrian(
            scene.clothes, scene.pedestrian == "walking", g.pedestrian_x[scene.where], g.pedestrian_z[scene.where],
            0.9 + 0.12 * size, flipped < 0.5, int(look * 6),
        )  # fmt: skip
    things |= dict(enumerate((*g.others, *g.people), PEDESTRIAN + 1))
    return things


def _draw(scene: Scene, g: Geometry, light: Light, width: int, height: int) -> _Drawing:
    backdrop, things = Canvas(width, height), Canvas(width, height)
    camera = Camera(FINE * width, FINE * height, g.horizon, g.bend)
    draw_backdrop(scene, g, light, backdrop, camera)
    drawings: list[Drawing] = scenery(scene, g, light, things, camera)
    instances = _things(scene, g)
    for number, thing in instances.items():
        pen = MetrePen(things, camera, light, FIRST_INSTANCE + number)
        drawings.append((thing.z, _drawing(pen, thing)))
    if scene.traffic_light != "none":
        x = g.left - 0.35 if g.light_left and g.left > -3.4 else g.right + 0.35
        pen = MetrePen(things, camera, light, NUMBER_OF["traffic light"])
        drawings.append((g.crossing + 2.6, lambda: draw_traffic_light(pen, x, g.crossing + 2.6, scene.traffic_light)))
    for _, draw in sorted(drawings, key=lambda drawing: -drawing[0]):
        draw()
    return _Drawing(backdrop, things, instances)


def _drawing(pen: MetrePen, thing: Vehicle | Pedestrian) -> Callable[[], None]:
    if isinstance(thing, Vehicle):
        return lambda: draw_vehicle(pen, thing)
    return lambda: draw_pedestrian(pen, thing)


def _foot(drawing: _Drawing, g: Geometry, instance: int) -> int:
    """The image row of the ground point of a thing."""
    camera = Camera(drawing.things.width, drawing.things.height, g.horizon, g.bend)
    foot = np.array([(0.0, 0.0, drawing.instances[instance].z)])
    return round(float(camera.project(foot)[0, 1]))


def _compose(scene: Scene, g: Geometry, light: Light, drawing: _Drawing) -> Image:
    backdrop, _ = drawing.backdrop.average()
    colours, alpha = drawing.things.average()
    numbers = drawing.backdrop.numbers
    road = coverage(numbers == NUMBER_OF["road"])
    picture = draw_surface(scene, g, light, backdrop, road[..., None])
    picture = headlights(g, light, picture, coverage(numbers != NUMBER_OF["sky"])[..., None])
    if (wet := wetness(scene)) > 0:
        for number in drawing.instances:
            colour, there = drawing.things.average(number + FIRST_INSTANCE)
            if there.any():
                opaque = np.asarray(colour / np.maximum(there, 1 / 255), np.float32)
                add_reflection(picture, opaque, there[..., 0], _foot(drawing, g, number), np.float32(0.5 * wet) * road)
    picture = picture * (1 - alpha) + colours
    if light.time != "day":
        picture += _halo(light, drawing.things.shining())
    image = np.asarray(np.clip(picture, 0, 255), np.uint8)
    if scene.style == "painting":
        image = styles.brushed(image, g.strokes)
    elif scene.style == "sketch":
        image = styles.pencil(image, g.strokes)
    if scene.weather in ("rain", "snow"):
        image = styles.precipitation(image, scene.weather, scene.style, light.night, g.drops)
    return image


def _halo(light: Light, lamps: Floats) -> Floats:
    """The light that lamps throw about; fog spreads it."""
    pixel = lamps.shape[0] / 128
    sigma, strength = (7.0, 26.0) if light.weather == "fog" else (2.6, 7.5)
    spread = cv2.GaussianBlur(lamps, (0, 0), sigma * pixel)
    return np.asarray(spread * np.float32(strength * pixel**2 * (1.0 if light.night else 0.5)), np.float32)
