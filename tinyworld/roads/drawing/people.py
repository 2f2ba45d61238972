"""Pedestrians, and the traffic light."""

from __future__ import annotations

from tinyworld.drawing.canvas import Colour
from tinyworld.drawing.colours import COMPANION_COLOURS
from tinyworld.roads.drawing.canvas import MetrePen
from tinyworld.roads.drawing.geometry import TALLEST, Pedestrian

_SKIN: tuple[Colour, ...] = ((240, 196, 160), (214, 160, 122), (132, 88, 64))
_HAIR: tuple[Colour, ...] = ((70, 46, 34), (32, 28, 28), (206, 166, 92))
_TROUSERS: tuple[Colour, ...] = ((48, 54, 84), (60, 58, 60), (96, 78, 62))
_EDGE = (34, 34, 42)
_CASE, _POST = (38, 42, 44), (92, 96, 100)
_OFF: dict[str, Colour] = {"red": (84, 30, 30), "yellow": (84, 70, 26), "green": (26, 70, 44)}
_ON: dict[str, Colour] = {"red": (255, 48, 44), "yellow": (255, 204, 40), "green": (60, 240, 130)}


def draw_pedestrian(pen: MetrePen, person: Pedestrian) -> None:
    """A person `person.size` x 1.8 m tall, about 0.75 m wide."""
    stand = pen.standing(person.x, person.z, flipped=person.flipped, scale=person.size * TALLEST / 1.8)
    coat, skin = COMPANION_COLOURS[person.colour], _SKIN[person.look % 3]
    trousers, hair = _TROUSERS[(person.look + 1) % 3], _HAIR[person.look // 2]
    if person.walking:
        stand.limb(((0.02, 0.86), (-0.16, 0.46), (-0.33, 0.06)), 0.2, trousers)
        stand.limb(((0.0, 0.86), (0.2, 0.5), (0.24, 0.06)), 0.2, trousers)
        stand.limb(((0.24, 0.05), (0.36, 0.05)), 0.11, _EDGE)
        stand.limb(((-0.34, 0.07), (-0.24, 0.04)), 0.11, _EDGE)
    else:
        for u in (-0.14, 0.14):
            stand.limb(((u, 0.86), (u, 0.07)), 0.21, trousers)
            stand.limb(((u - 0.02, 0.05), (u + 0.08, 0.05)), 0.11, _EDGE)
    torso = ((-0.27, 0.74), (-0.31, 1.3), (-0.18, 1.47), (0.18, 1.47), (0.31, 1.3), (0.27, 0.74))
    stand.polygon(torso, coat, edge=_EDGE)
    sleeve: Colour = (int(coat[0] * 0.8), int(coat[1] * 0.8), int(coat[2] * 0.8))
    arms = ((-0.3, 1.34, -0.44, 0.86), (0.3, 1.34, 0.42, 0.9)) if person.walking else (
        (-0.32, 1.32, -0.37, 0.82), (0.32, 1.32, 0.37, 0.82))  # fmt: skip
    for u, v, u1, v1 in arms:
        stand.limb(((u, v), (u1, v1)), 0.15, sleeve)
    stand.ellipse(0.0, 1.62, 0.165, 0.185, skin)
    crown = ((-0.18, 1.6), (-0.18, 1.72), (-0.08, 1.82), (0.1, 1.82), (0.18, 1.72), (0.16, 1.68), (-0.06, 1.7))
    stand.polygon(crown, hair)


def draw_traffic_light(pen: MetrePen, x: float, z: float, state: str) -> None:
    """A post with three lamps, one of them on."""
    stand = pen.standing(x, z)
    stand.limb(((0, 0), (0, 2.2)), 0.17, _POST)
    stand.box(-0.36, 1.95, 0.36, 3.75, _CASE, edge=(20, 20, 22))
    for lamp, v in (("red", 3.42), ("yellow", 2.85), ("green", 2.28)):
        on = lamp == state
        stand.ellipse(0, v, 0.27, 0.27, _ON[lamp] if on else _OFF[lamp], glow=on)
