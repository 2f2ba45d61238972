"""Positions of the things in a driving scene: every free choice of the drawing, from the geometry seed alone.

Metres: x to the right of the camera, y up from the ground, z ahead. The camera is a pinhole in a car.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinyworld.domain.scenes import COLOURS, COMPANION_COLOURS
from tinyworld.drawing.canvas import Draws
from tinyworld.roads.world import Scene

FOCAL = 0.8  # in image heights
CAMERA_HEIGHT = 1.35
TALLEST, FARTHEST_PEDESTRIAN = 1.8, 8.3  # metres: at that distance 22 of 128 pixels
NEAREST = 0.9
_SIDEWALK = 2.3  # metres wide


@dataclass(frozen=True, slots=True)
class Camera:
    """From metres to the pixels of an image of `width` x `height`."""

    width: int
    height: int
    horizon: float  # of the height
    bend: float  # how far to the right the road has gone at 30 metres

    def project(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points (n x 3, metres) as pixels (n x 2: x, y)."""
        z = np.maximum(points[:, 2], NEAREST)
        focal = FOCAL * self.height
        x = self.width / 2 + focal * (points[:, 0] + self.bend * (z / 30) ** 2) / z
        return np.stack((x, self.horizon * self.height + focal * (CAMERA_HEIGHT - points[:, 1]) / z), axis=1)

    def ground(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """x and z in metres of the ground seen by each pixel (height x width); above the horizon z is 500."""
        below = (np.arange(self.height, dtype=np.float32) + 0.5) - self.horizon * self.height
        z = np.where(below > 0.3, FOCAL * self.height * CAMERA_HEIGHT / np.maximum(below, 0.3), 500.0)[:, None]
        across = (np.arange(self.width, dtype=np.float32) + 0.5 - self.width / 2)[None, :]
        x = across * z / (FOCAL * self.height) - self.bend * (z / 30) ** 2
        return x.astype(np.float32), np.broadcast_to(z, x.shape).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Vehicle:
    """One vehicle; `x` of its middle, `z` of its near end."""

    kind: str
    colour: str
    x: float
    z: float
    towards: bool  # comes towards the camera


@dataclass(frozen=True, slots=True)
class Pedestrian:
    """One person standing at (x, z)."""

    colour: str
    walking: bool
    x: float
    z: float
    size: float  # 0.86 to 1.02 of `TALLEST`
    flipped: bool
    look: int  # 0 to 5: hair and trousers


@dataclass(frozen=True, slots=True)
class Geometry:
    """All free choices; the arrays are uniform in 0 … 1. Drawn independently of the factors."""

    horizon: float
    bend: float
    left: float  # x of the left kerb, negative
    right: float  # x of the right kerb
    crossing: float  # z of its near edge
    vehicle_z: float
    pedestrian_x: dict[str, float]  # by where the named pedestrian is
    pedestrian_z: dict[str, float]
    pedestrian: Draws  # 3
    light_left: bool
    others: tuple[Vehicle, ...]
    people: tuple[Pedestrian, ...]
    sun: tuple[float, float]
    clouds: Draws  # 4 x 3
    houses: Draws  # 2 x 9 x 5: side, along the road
    trees: Draws  # 2 x 6 x 4
    skyline: Draws  # 16 x 2
    puddles: Draws  # 5 x 3
    stars: Draws  # 26 x 3
    drops: Draws  # 60 x 3
    strokes: Draws  # 8

    @property
    def edges(self) -> tuple[float, float]:
        """x of the outer edges of the sidewalks."""
        return self.left - _SIDEWALK, self.right + _SIDEWALK


def geometry_of(scene: Scene) -> Geometry:
    """The free choices of a scene."""
    random = np.random.default_rng((0x9E0, scene.geometry_seed))
    u = random.random(16)
    left, right, crossing = -(2.3 + 2.7 * u[0]), 1.6 + 0.5 * u[1], 3.5 + 2.2 * u[2]
    over = crossing + 0.5 + 0.6 * u[5]
    west, east = max(left + 0.5, -0.52 * over), min(right - 0.5, 0.52 * over)
    x = {"sidewalk": _beside(left, right, u[3], u[4]), "crossing": west + (east - west) * u[4]}
    z = {"sidewalk": _depth(x["sidewalk"], u[5]), "crossing": over}
    return Geometry(
        horizon=0.42 + 0.05 * u[6],
        bend=9.0 * (u[7] - 0.5),
        left=left,
        right=right,
        crossing=crossing,
        vehicle_z=8.4 + 4.5 * u[8],
        pedestrian_x=x,
        pedestrian_z=z,
        pedestrian=u[9:12],
        light_left=bool(u[12] < 0.35),
        others=_other_vehicles(random, left, right),
        people=_people(random, left, right, [x[where] / z[where] for where in x]),
        sun=(0.2 + 0.6 * u[13], 0.08 + 0.1 * u[14]),
        clouds=random.random((4, 3)),
        houses=random.random((2, 9, 5)),
        trees=random.random((2, 6, 4)),
        skyline=random.random((16, 2)),
        puddles=random.random((5, 3)),
        stars=random.random((26, 3)),
        drops=random.random((60, 3)),
        strokes=random.random(8),
    )


def _beside(left: float, right: float, side: float, place: float) -> float:
    """x on a sidewalk; on the left one only where the road is narrow enough for it to be in sight."""
    away = 0.55 + 0.9 * place
    return left - away if left > -3.4 and side < 0.45 else right + away


def _depth(x: float, place: float) -> float:
    """z at which someone at x is in sight of a square image and at least 20 pixels tall."""
    nearest = abs(x) / 0.53
    return float(min(nearest, FARTHEST_PEDESTRIAN - 0.2) + place * max(FARTHEST_PEDESTRIAN - nearest, 0.2))


def _other_vehicles(random: np.random.Generator, left: float, right: float) -> tuple[Vehicle, ...]:
    """Up to two oncoming vehicles, where there is a lane for them, one far ahead and one parked."""
    vehicles = []
    for near, far in ((5.5, 13.0), (17.0, 30.0)):
        kind, colour, presence, depth = _draw_vehicle(random)
        if left < -3.7 and presence < 0.55:
            vehicles.append(Vehicle(kind, colour, left / 2 - 0.9, near + (far - near) * depth, True))
    kind, colour, presence, depth = _draw_vehicle(random)
    if presence < 0.5:
        vehicles.append(Vehicle(kind, colour, 0.0, 24.0 + 14.0 * depth, False))
    kind, colour, presence, depth = _draw_vehicle(random)
    if presence < 0.4:
        vehicles.append(Vehicle("car", colour, right + 0.75, 9.5 + 6.0 * depth, False))
    return tuple(vehicles)


def _draw_vehicle(random: np.random.Generator) -> tuple[str, str, float, float]:
    a, b, presence, depth = random.random(4)
    kind = "car" if a < 0.6 else "bus" if a < 0.8 else "truck"
    return kind, COLOURS[int(b * len(COLOURS))], float(presence), float(depth)


def _people(random: np.random.Generator, left: float, right: float, occupied: list[float]) -> tuple[Pedestrian, ...]:
    """Up to three more people on the sidewalks."""
    pedestrians = []
    for _ in range(3):
        colour, walking, side, place, depth, size, flipped, look, presence = random.random(9).tolist()
        x = _beside(left, right, side, place)
        worn, hair = COMPANION_COLOURS[int(colour * len(COMPANION_COLOURS))], int(look * 6)
        depth, tall = _depth(x, float(depth)), float(0.86 + 0.16 * size)
        apart = all(abs(x / depth - named) > 0.13 for named in occupied)  # nobody hides the one that captions speak of
        if presence < 0.45 and apart:
            pedestrians.append(Pedestrian(worn, bool(walking < 0.5), x, depth, tall, bool(flipped < 0.5), hair))
    return tuple(pedestrians)
