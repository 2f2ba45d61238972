"""Cars, buses and trucks from behind and from the front, in perspective, with the visible side."""

from __future__ import annotations

from dataclasses import dataclass

from tinyworld.drawing.canvas import Colour
from tinyworld.drawing.colours import OBJECT_COLOURS
from tinyworld.roads.drawing.canvas import MetrePen
from tinyworld.roads.drawing.geometry import Vehicle

_GLASS, _DARK, _PLATE = (150, 190, 212), (40, 42, 48), (244, 244, 236)
_TAIL, _TAIL_LIT, _HEAD, _HEAD_LIT = (196, 34, 36), (255, 72, 60), (240, 236, 214), (255, 250, 222)
_EDGE = (34, 34, 42)


@dataclass(frozen=True, slots=True)
class _Body:
    """Metres."""

    width: float
    height: float
    length: float
    floor: float
    lights: float  # height of the lamps' lower edge
    wheel: float


_BODIES = {
    "car": _Body(1.86, 1.5, 4.2, 0.3, 0.62, 0.34),
    "bus": _Body(2.5, 3.05, 10.5, 0.36, 0.6, 0.48),
    "truck": _Body(2.45, 3.2, 7.5, 0.55, 0.68, 0.5),
}


def draw_vehicle(pen: MetrePen, vehicle: Vehicle) -> None:
    """Draw a vehicle whose near end stands at (x, z)."""
    body = _BODIES[vehicle.kind]
    colour = OBJECT_COLOURS[vehicle.colour]
    half, x, z = body.width / 2, vehicle.x, vehicle.z
    bend = pen.camera.bend * (z / 30) ** 2
    if abs(x + bend) > half * 0.6:  # else only the near end shows
        _side(pen, vehicle, body, colour, x - half if x + bend > 0 else x + half)
    stand = pen.standing(x, z)
    stand.polygon([(u * half, 0.02) for u in (-1, -0.5, 0.5, 1)] + [(0.92 * half, 0.16), (-0.92 * half, 0.16)], _DARK)
    for u in (-1, 1):
        stand.box(u * (half - 0.1), 0.0, u * (half - 0.38), body.wheel * 1.2, (26, 26, 30))
    {"car": _car, "bus": _bus, "truck": _truck}[vehicle.kind](pen, vehicle, body, colour)
    _lights(pen, vehicle, body)


def _car(pen: MetrePen, vehicle: Vehicle, body: _Body, colour: Colour) -> None:
    stand, half = pen.standing(vehicle.x, vehicle.z), body.width / 2
    roof = ((-0.86 * half, 0.9), (-0.62 * half, 1.5), (0.62 * half, 1.5), (0.86 * half, 0.9))
    stand.polygon(roof, colour, edge=_EDGE)
    stand.polygon(((-0.72 * half, 0.94), (-0.54 * half, 1.4), (0.54 * half, 1.4), (0.72 * half, 0.94)), _GLASS)
    lower = ((-half, 0.3), (-half, 0.78), (-0.9 * half, 0.94), (0.9 * half, 0.94), (half, 0.78), (half, 0.3))
    stand.polygon(lower, colour, edge=_EDGE)
    stand.box(-0.96 * half, 0.3, 0.96 * half, 0.44, _DARK)
    if vehicle.towards:
        stand.box(-0.5 * half, 0.5, 0.5 * half, 0.66, _DARK)
    else:
        stand.box(-0.3, 0.47, 0.3, 0.62, _PLATE)


def _bus(pen: MetrePen, vehicle: Vehicle, body: _Body, colour: Colour) -> None:
    stand, half = pen.standing(vehicle.x, vehicle.z), body.width / 2
    shell = (
        (-half, body.floor), (-half, 2.8), (-0.9 * half, body.height), (0.9 * half, body.height), (half, 2.8),
        (half, body.floor),
    )  # fmt: skip
    stand.polygon(shell, colour, edge=_EDGE)
    stand.box(-0.86 * half, 1.3, 0.86 * half, 2.45, _GLASS)
    if vehicle.towards:
        stand.box(-0.03, 1.3, 0.03, 2.45, _DARK)
    if vehicle.towards and pen.light.time != "day":
        stand.polygon(
            ((-0.6, 2.58), (0.6, 2.58), (0.6, 2.86), (-0.6, 2.86)), (255, 206, 92), glow=True
        )  # its line and destination
    else:
        stand.box(-0.6, 2.58, 0.6, 2.86, _DARK)
    stand.box(-0.96 * half, body.floor, 0.96 * half, body.floor + 0.16, _DARK)
    stand.box(-0.3, 0.78, 0.3, 0.95, _PLATE)


def _truck(pen: MetrePen, vehicle: Vehicle, body: _Body, colour: Colour) -> None:
    stand, half = pen.standing(vehicle.x, vehicle.z), body.width / 2
    stand.box(-0.94 * half, 0.5, 0.94 * half, 0.95, _DARK)
    if vehicle.towards:
        stand.box(-0.97 * half, 1.0, 0.97 * half, body.height, _tone(colour, 0.72), edge=_EDGE)
        cab = ((-0.9 * half, 0.55), (-0.9 * half, 2.3), (-0.75 * half, 2.6), (0.75 * half, 2.6), (0.9 * half, 2.3),
               (0.9 * half, 0.55))  # fmt: skip
        stand.polygon(cab, colour, edge=_EDGE)
        stand.box(-0.76 * half, 1.5, 0.76 * half, 2.3, _GLASS)
        stand.box(-0.5 * half, 0.95, 0.5 * half, 1.25, _DARK)
        return
    stand.box(-half, 0.95, half, body.height, colour, edge=_EDGE)
    stand.box(-0.86 * half, 1.1, -0.05, body.height - 0.18, _tone(colour, 0.86))
    stand.box(0.05, 1.1, 0.86 * half, body.height - 0.18, _tone(colour, 0.86))
    for u in (-0.16, 0.16):
        stand.box(u - 0.03, 1.3, u + 0.03, body.height - 0.4, _DARK)


def _side(pen: MetrePen, vehicle: Vehicle, body: _Body, colour: Colour, x: float) -> None:
    """The wall along the road at `x`, with windows and wheels."""
    z, dark = vehicle.z, _tone(colour, 0.74)

    def plane(points: tuple[tuple[float, float], ...], fill: Colour, *, edge: Colour | None = None) -> None:
        pen.face([(x, v, z + w) for w, v in points], fill, edge=edge)

    long = body.length
    if vehicle.kind == "car":
        plane(((0.5, 0.85), (0.95, 1.48), (2.7, 1.48), (3.4, 0.85)), dark, edge=_EDGE)
        plane(((0.8, 0.9), (1.1, 1.38), (2.6, 1.38), (3.1, 0.9)), _GLASS)
        plane(((0, body.floor), (0, 0.86), (long, 0.8), (long, body.floor)), dark, edge=_EDGE)
    elif vehicle.kind == "bus":
        plane(((0, body.floor), (0, 2.9), (long, 2.9), (long, body.floor)), dark, edge=_EDGE)
        plane(((0.5, 1.4), (0.5, 2.35), (long - 0.5, 2.35), (long - 0.5, 1.4)), _GLASS)
    else:
        cargo = (2.2, long) if vehicle.towards else (0.0, long - 2.2)
        plane(((0.2, 0.5), (0.2, 0.95), (long, 0.95), (long, 0.5)), _DARK)
        plane(((cargo[0], 0.95), (cargo[0], body.height), (cargo[1], body.height), (cargo[1], 0.95)), dark, edge=_EDGE)
        cab = (0.0, 2.0) if vehicle.towards else (long - 2.0, long)
        plane(((cab[0], 0.55), (cab[0], 2.4), (cab[1], 2.4), (cab[1], 0.55)), _tone(colour, 0.6), edge=_EDGE)
    for w in (0.18 * long, 0.8 * long):
        r = body.wheel
        circle = [(a, b) for a, b in ((1, 0), (0.7, 0.7), (0, 1), (-0.7, 0.7), (-1, 0), (-0.7, -0.7), (0, -1),
                                      (0.7, -0.7))]  # fmt: skip
        plane(tuple((w + r * a, r + r * b) for a, b in circle), (30, 30, 34))


def _lights(pen: MetrePen, vehicle: Vehicle, body: _Body) -> None:
    """Lamps at both sides: white towards the camera, red away from it; they shine when it is not day."""
    stand, half = pen.standing(vehicle.x, vehicle.z), body.width / 2
    shining = pen.light.time != "day" or pen.light.weather == "fog"
    off, lit = (_HEAD, _HEAD_LIT) if vehicle.towards else (_TAIL, _TAIL_LIT)
    for u in (-1, 1):
        corners = [(u * (half - 0.08), body.lights), (u * (half - 0.46), body.lights),
                   (u * (half - 0.46), body.lights + 0.22), (u * (half - 0.08), body.lights + 0.22)]  # fmt: skip
        stand.polygon(corners, lit if shining else off, glow=shining)


def _tone(colour: Colour, factor: float) -> Colour:
    return int(colour[0] * factor), int(colour[1] * factor), int(colour[2] * factor)
