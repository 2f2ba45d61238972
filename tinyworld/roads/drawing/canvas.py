"""A canvas that records what each of its pixels shows, and the pen that draws on it in metres.

Everything is drawn as filled polygons at four times the final size. The fourth channel is a number per pixel: what
is there (`NUMBER_OF`, or an instance's). The picture is the average, the mask is what most of a pixel shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from tinyworld.drawing.canvas import Colour, Floats, Image
from tinyworld.roads.drawing.geometry import Camera
from tinyworld.roads.drawing.light import Light
from tinyworld.roads.world import CLASSES

FINE = 4
FIRST_INSTANCE = 16  # numbers below are classes + 1; 0 is nothing drawn
NUMBER_OF = {name: place + 1 for place, name in enumerate(CLASSES)}
_SHIFT = 4  # OpenCV's fixed-point bits
_CIRCLE = [(float(np.cos(a)), float(np.sin(a))) for a in np.linspace(0, 2 * np.pi, 20, endpoint=False)]
Point = tuple[float, float, float]


class Canvas:
    """Pixels (4 height x 4 width x 4): RGB, and the number of what is drawn there (0: nothing)."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.pixels: Image = np.zeros((FINE * height, FINE * width, 4), np.uint8)
        self.lamps: list[tuple[int, int, Colour]] = []  # fine column and row, colour, of what throws light about

    @property
    def numbers(self) -> Image:
        """What is drawn where (4 height x 4 width)."""
        return self.pixels[..., 3]

    def fill(self, points: np.ndarray, colour: Colour, number: int) -> None:
        """Fill a polygon (n x 2 pixels of the fine grid)."""
        cv2.fillPoly(self.pixels, [_fixed_point(points)], (*colour, number), cv2.LINE_8, _SHIFT)

    def stroke(self, points: np.ndarray, colour: Colour, number: int, width: float, *, closed: bool = False) -> None:
        """Draw a line through points (n x 2), `width` fine pixels thick."""
        thickness = max(1, round(width))
        cv2.polylines(self.pixels, [_fixed_point(points)], closed, (*colour, number), thickness, cv2.LINE_8, _SHIFT)

    def shining(self) -> Floats:
        """Colours (h x w x 3) at the final pixels of lamps that nothing hides; all else is 0."""
        lights = np.zeros((self.height, self.width, 3), np.float32)
        for x, y, colour in self.lamps:
            inside = 0 <= x < FINE * self.width and 0 <= y < FINE * self.height
            if inside and tuple(self.pixels[y, x, :3].tolist()) == colour:
                lights[y // FINE, x // FINE] = colour
        return lights

    def average(self, number: int | None = None) -> tuple[Floats, Floats]:
        """Colours weighted by opacity (0 to 255, h x w x 3) and opacity (0 to 1, h x w x 1) at the final size.

        Of all that is drawn, or of the pixels of one number only.
        """
        region = (self.numbers > 0 if number is None else self.numbers == number).astype(np.uint8)
        masked = cv2.bitwise_and(self.pixels[..., :3], self.pixels[..., :3], mask=region)
        colours = cv2.resize(masked, (self.width, self.height), interpolation=cv2.INTER_AREA)
        return colours.astype(np.float32), coverage(region)[..., None]


class MetrePen:
    """Draws one thing on a canvas, in metres, in the light of the scene."""

    def __init__(self, canvas: Canvas, camera: Camera, light: Light, number: int) -> None:
        self.canvas, self.camera, self.light, self.number = canvas, camera, light, number

    def face(
        self,
        points: Sequence[Point],
        colour: Colour,
        *,
        snow: float = 0.0,
        glow: bool = False,
        edge: Colour | None = None,
    ) -> None:
        """Fill a plane face; `edge` draws its outline, too."""
        corners = np.array(points, np.float64)
        x, _, z = corners.mean(axis=0)
        beam = self.light.beam(float(x), float(z))
        lit = self.light.glowing(colour, z) if glow else self.light.on(colour, z, snow=snow, beam=beam)
        placed = self.camera.project(corners)
        self.canvas.fill(placed, lit, self.number)
        if glow and (self.number >= FIRST_INSTANCE or self.number == NUMBER_OF["void"]):
            middle = placed.mean(axis=0)
            self.canvas.lamps.append((int(middle[0]), int(middle[1]), lit))
        if edge is not None:
            outline = self.light.on(edge, z, beam=beam)
            self.canvas.stroke(placed, outline, self.number, self.canvas.height / 52, closed=True)

    def standing(self, x: float, z: float, *, flipped: bool = False, scale: float = 1.0) -> Stand:
        """A frame for flat things that face the camera: u metres to the right of x, v metres above the ground."""
        return Stand(self, x, z, -scale if flipped else scale, scale)


class Stand:
    """Draws upright things that face the camera, in metres from their foot."""

    def __init__(self, pen: MetrePen, x: float, z: float, across: float, up: float) -> None:
        self._pen, self._x, self._z, self._across, self._up = pen, x, z, across, up

    def polygon(
        self,
        points: Sequence[tuple[float, float]],
        colour: Colour,
        *,
        snow: float = 0.0,
        glow: bool = False,
        edge: Colour | None = None,
    ) -> None:
        """Fill a polygon of (u, v) points."""
        self._pen.face([self._at(u, v) for u, v in points], colour, snow=snow, glow=glow, edge=edge)

    def box(self, u0: float, v0: float, u1: float, v1: float, colour: Colour, *, edge: Colour | None = None) -> None:
        """Fill an upright box."""
        self.polygon(((u0, v0), (u1, v0), (u1, v1), (u0, v1)), colour, edge=edge)

    def ellipse(
        self, u: float, v: float, ru: float, rv: float, colour: Colour, *, snow: float = 0.0, glow: bool = False
    ) -> None:
        """Fill an ellipse."""
        self.polygon([(u + ru * a, v + rv * b) for a, b in _CIRCLE], colour, snow=snow, glow=glow)

    def limb(self, points: Sequence[tuple[float, float]], width: float, colour: Colour) -> None:
        """A round-ended line of `width` metres."""
        pen = self._pen
        placed = pen.camera.project(np.array([self._at(u, v) for u, v in points]))
        foot, top = pen.camera.project(np.array([(0, 0, self._z), (0, 1, self._z)]))[:, 1].tolist()
        lit = pen.light.on(colour, self._z, beam=pen.light.beam(self._x, self._z))
        pen.canvas.stroke(placed, lit, pen.number, width * self._up * (foot - top))

    def _at(self, u: float, v: float) -> Point:
        return self._x + u * self._across, v * self._up, self._z


def coverage(where: np.ndarray) -> Floats:
    """Share of each final pixel (h x w, 0 to 1) of a fine mask (4h x 4w)."""
    height, width = (side // FINE for side in where.shape)
    fine = np.asarray(where, np.uint8) * np.uint8(255)
    share = np.asarray(cv2.resize(fine, (width, height), interpolation=cv2.INTER_AREA), np.float32)
    share /= 255
    return share


def show(numbers: Image) -> Image:
    """What most of each final pixel shows (h x w); where two show as much of themselves, the higher number."""
    height, width = (side // FINE for side in numbers.shape)
    best, most = np.zeros((height, width), np.uint8), np.zeros((height, width), np.float32)
    for number in np.flatnonzero(np.bincount(numbers.ravel(), minlength=256)):
        share = coverage(numbers == number)
        wins = share >= most
        best[wins], most[wins] = number, share[wins]
    return best


def _fixed_point(points: np.ndarray) -> np.ndarray:
    return np.asarray(np.round(np.clip(points, -30_000, 30_000) * (1 << _SHIFT)), np.int32)
