"""Positions of the things in a scene: every free choice of the drawing, from the geometry seed alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tinyworld.drawing.canvas import Draws
from tinyworld.objects.world import Scene


@dataclass(frozen=True, slots=True)
class Geometry:
    """All free choices; positions in image widths, the rest uniform in 0 … 1. Drawn independently of the factors."""

    x: float  # of the object
    y: float  # of the ground under the object
    scale: float  # multiplies the object's size, 0.94 to 1.06
    flipped: bool
    companion_x: float  # distance from the nearer image side
    companion_y: float
    companion_flipped: bool
    horizon: float
    sun: tuple[float, float]
    clouds: Draws  # 4 x 3
    scenery: Draws  # 24 x 4
    stars: Draws  # 26 x 3
    drops: Draws  # 46 x 3
    strokes: Draws  # 8


def geometry_of(scene: Scene) -> Geometry:
    random = np.random.default_rng((0x9E0, scene.geometry_seed))
    u = random.random(12)
    return Geometry(
        x=0.5 + 0.05 * (u[0] - 0.5),
        y=0.84 + 0.05 * (u[1] - 0.5),
        scale=0.94 + 0.12 * u[2],
        flipped=bool(u[3] < 0.5),
        companion_x=0.1 + 0.02 * u[4],
        companion_y=0.9 + 0.04 * (u[5] - 0.5),
        companion_flipped=bool(u[6] < 0.5),
        horizon=0.56 + 0.06 * (u[7] - 0.5),
        sun=(0.14 + 0.72 * u[8], 0.1 + 0.08 * u[9]),
        clouds=random.random((4, 3)),
        scenery=random.random((24, 4)),
        stars=random.random((26, 3)),
        drops=random.random((46, 3)),
        strokes=random.random(8),
    )
