"""A layer of pixels and the pen that draws on it, in the units of the drawn thing.

Everything is drawn as filled polygons at twice the final size and averaged down. Parts in the
object's own colour are drawn as a *shade*; `Layer.paint` fills in the colour and pattern later, so
that a drawing never needs to know either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
Floats = NDArray[np.float32]
Draws = NDArray[np.float64]  # random choices, uniform in 0 … 1
Colour = tuple[int, int, int]
Points = Sequence[tuple[float, float]]

_SHIFT = 4  # OpenCV's fixed-point bits: polygons are placed to 1/16 pixel


@dataclass(frozen=True, slots=True)
class Shade:
    """A part in the object's own colour; 200 is that colour itself, less is darker, more is lighter."""

    level: int


BODY = Shade(200)
BODY_DARK = Shade(150)
BODY_LIGHT = Shade(232)
Fill = Colour | Shade


class Layer:
    """Pixels of one depth: RGB and shade (side x side x 4, uint8) and how opaque they are (side x side, uint8)."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.pixels: Image = np.zeros((side, side, 4), np.uint8)
        self.alpha: Image = np.zeros((side, side), np.uint8)

    def paint(self, texture: Image) -> None:
        """Fill the parts drawn as a shade with `texture` (side x side x 3)."""
        x, y, width, height = cv2.boundingRect(self.pixels[..., 3])
        box = (slice(y, y + height), slice(x, x + width))
        shade = self.pixels[box][..., 3:4].astype(np.float32) / BODY.level
        painted = np.minimum(texture[box] * shade, 255).astype(np.uint8)
        self.pixels[box][..., :3] = np.where(shade > 0, painted, self.pixels[box][..., :3])

    def outline(self, colour: Colour, width: int) -> None:
        """Draw a line of `width` pixels around everything on the layer."""
        kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * width + 1, 2 * width + 1))
        grown = cv2.dilate(self.alpha, kernel)
        self.pixels[(grown > 0) & (self.alpha == 0)] = (*colour, 0)
        self.alpha = np.asarray(grown, np.uint8)

    def average(self) -> tuple[Floats, Floats]:
        """Colours weighted by opacity (0 to 255, h x w x 3) and opacity (0 to 1, h x w x 1) at half the side."""
        half = (self.side // 2, self.side // 2)
        colours = cv2.resize(self.pixels, half, interpolation=cv2.INTER_AREA)[..., :3]  # black where nothing is
        alpha = cv2.resize(self.alpha, half, interpolation=cv2.INTER_AREA)
        return colours.astype(np.float32), alpha.astype(np.float32)[..., None] / 255


@lru_cache(maxsize=1024)
def smooth(*points: tuple[float, float], steps: int = 6) -> tuple[tuple[float, float], ...]:
    """The closed Catmull-Rom curve through the points."""
    p = np.array(points)
    before, after, beyond = np.roll(p, 1, 0), np.roll(p, -1, 0), np.roll(p, -2, 0)
    t = (np.arange(steps) / steps)[None, :, None]
    p, before, after, beyond = (q[:, None] for q in (p, before, after, beyond))
    curve = p + 0.5 * t * (
        after - before + t * (2 * before - 5 * p + 4 * after - beyond + t * (3 * (p - after) + beyond - before))
    )
    return tuple((float(x), float(y)) for x, y in curve.reshape(-1, 2))


_CIRCLE = tuple((float(np.cos(a)), float(np.sin(a))) for a in np.linspace(0, 2 * np.pi, 28, endpoint=False))


class Pen:
    """Draws in a frame of its own: origin (`x`, `y`) and unit (`scale`) in image widths, y upwards."""

    def __init__(self, layer: Layer, x: float, y: float, scale: float, *, flipped: bool = False) -> None:
        self._layer = layer
        self._origin = np.array([x, y]) * layer.side
        self._axes = np.array([-scale if flipped else scale, -scale]) * layer.side

    def polygon(self, points: Points, fill: Fill) -> None:
        fixed = self._fixed_point(points)
        colour = (0, 0, 0, fill.level) if isinstance(fill, Shade) else (*fill, 0)
        cv2.fillPoly(self._layer.pixels, [fixed], colour, cv2.LINE_8, _SHIFT)
        cv2.fillPoly(self._layer.alpha, [fixed], (255,), cv2.LINE_8, _SHIFT)

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: Fill) -> None:
        self.polygon(((x0, y0), (x1, y0), (x1, y1), (x0, y1)), fill)

    def ellipse(self, x: float, y: float, rx: float, ry: float, fill: Fill) -> None:
        self.polygon([(x + rx * a, y + ry * b) for a, b in _CIRCLE], fill)

    def circle(self, x: float, y: float, radius: float, fill: Fill) -> None:
        self.ellipse(x, y, radius, radius, fill)

    def line(self, points: Points, width: float, fill: Fill) -> None:
        fixed = self._fixed_point(points)
        thickness = max(1, round(width * abs(float(self._axes[0]))))
        colour = (0, 0, 0, fill.level) if isinstance(fill, Shade) else (*fill, 0)
        cv2.polylines(self._layer.pixels, [fixed], False, colour, thickness, cv2.LINE_8, _SHIFT)
        cv2.polylines(self._layer.alpha, [fixed], False, (255,), thickness, cv2.LINE_8, _SHIFT)

    def wheel(self, x: float, radius: float) -> None:
        """A wheel that stands on the ground."""
        self.circle(x, radius, radius, (38, 38, 42))
        self.circle(x, radius, radius * 0.48, (178, 180, 186))

    def _fixed_point(self, points: Points) -> NDArray[np.int32]:
        placed = self._origin + np.asarray(points, np.float64) * self._axes
        return np.asarray(np.round(placed * (1 << _SHIFT)), np.int32)
