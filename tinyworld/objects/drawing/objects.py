"""The labelled objects by class and silhouette, and the patterned surface of their bodies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tinyworld.drawing.canvas import Colour, Image, Layer, Pen
from tinyworld.drawing.colours import OBJECT_COLOURS
from tinyworld.objects.drawing import aircraft, birds, houses, vehicles

Drawing = Callable[[Pen], None]

DRAWINGS: dict[str, tuple[Drawing, Drawing, Drawing]] = {
    "car": (vehicles.sedan, vehicles.hatchback, vehicles.van),
    "bus": (vehicles.coach, vehicles.double_decker, vehicles.school_bus),
    "truck": (vehicles.box_truck, vehicles.pickup, vehicles.tanker),
    "boat": (vehicles.sailing_boat, vehicles.motorboat, vehicles.ferry),
    "plane": (aircraft.airliner, aircraft.propeller_plane, aircraft.biplane),
    "balloon": (aircraft.round_balloon, aircraft.pumpkin_balloon, aircraft.cone_balloon),
    "house": (houses.cottage, houses.town_house, houses.barn),
    "bird": (birds.songbird, birds.stork, birds.owl),
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
