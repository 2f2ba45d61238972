"""Weather and time of day on the road: colours at a distance, and the light of the headlights."""

from __future__ import annotations

import math

import numpy as np

from tinyworld.drawing.canvas import Colour
from tinyworld.drawing.sky import SKIES

_TIME_TINT = {"day": (1.0, 1.0, 1.0), "sunset": (1.0, 0.79, 0.68), "night": (0.25, 0.29, 0.44)}
_WEATHER_TINT = {"clear": 1.0, "rain": 0.74, "snow": 0.95, "fog": 0.94}
_SIGHT = {"clear": 190.0, "rain": 75.0, "snow": 55.0, "fog": 13.0}  # metres in which 63 % of a colour is lost
_HEADLIGHTS = np.array([0.92, 0.88, 0.76], np.float32)
SNOW = np.array([240, 244, 250], np.float32)


class Light:
    """What the light of one weather and time does to colours, by distance."""

    def __init__(self, weather: str, time: str) -> None:
        self.weather, self.time, self.night = weather, time, time == "night"
        self.zenith, self.horizon = SKIES[time, weather]
        self.tint = np.array(_TIME_TINT[time], np.float32) * _WEATHER_TINT[weather]

    def haze(self, z: float) -> float:
        """Share of a colour lost to the air on its way over z metres."""
        return 1 - math.exp(-z / _SIGHT[self.weather])

    def on(self, colour: Colour, z: float, *, snow: float = 0.0, beam: float = 0.0) -> Colour:
        """A surface as it appears: `snow` of it under snow when it snows, `beam` of it in the headlights at night."""
        lit = np.array(colour, np.float32)
        if self.weather == "snow":
            lit += (SNOW - lit) * snow
        tint = self.tint + (_HEADLIGHTS - self.tint) * beam if self.night else self.tint
        lit *= tint
        if self.weather == "rain":
            lit += (lit.mean() - lit) * 0.2
        return self._veil(lit, self.haze(z))

    def glowing(self, colour: Colour, z: float) -> Colour:
        """Something that shines by itself: the air takes half as much of it."""
        return self._veil(np.array(colour, np.float32), 0.5 * self.haze(z))

    def beam(self, x: float, z: float) -> float:
        """Share of the own headlights that reaches a standing thing at (x, z)."""
        if not self.night or z > 24:
            return 0.0
        return 0.72 * math.exp(-((x / (1.1 + 0.26 * z)) ** 2)) * min(1.0, 9.0 / z)

    def _veil(self, lit: np.ndarray, haze: float) -> Colour:
        lit = lit + (np.array(self.horizon, np.float32) - lit) * haze
        r, g, b = (int(v) for v in np.clip(lit, 0, 255))
        return r, g, b
