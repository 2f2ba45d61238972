"""Weather and time of day as light: the colours of lit surfaces."""

from __future__ import annotations

import numpy as np

from tinyworld.drawing.canvas import Colour
from tinyworld.drawing.sky import SKIES

_TIME_TINT = {"day": (1.0, 1.0, 1.0), "sunset": (1.0, 0.74, 0.6), "night": (0.42, 0.48, 0.66)}
_OBJECT_TINT = {"day": (1.0, 1.0, 1.0), "sunset": (1.0, 0.88, 0.78), "night": (0.64, 0.66, 0.78)}
_WEATHER_TINT = {"clear": 1.0, "rain": 0.76, "snow": 0.96, "fog": 0.94}
_SNOW = np.array([242, 246, 252], np.float32)


class Light:
    """What the light of one weather and time does to colours."""

    def __init__(self, weather: str, time: str) -> None:
        self.weather, self.time = weather, time
        self.zenith, self.horizon = SKIES[time, weather]
        self._tint = np.array(_TIME_TINT[time], np.float32) * _WEATHER_TINT[weather]
        self.object_tint = np.array(_OBJECT_TINT[time], np.float32) * (0.9 if weather == "rain" else 1.0)
        self.object_haze = 0.22 if weather == "fog" else 0.0

    def on(self, colour: Colour, distance: float = 0.0, snow: float = 0.0) -> Colour:
        """A colour of the scenery as it appears: `snow` of it under snow when it snows, veiled by distance."""
        lit = np.array(colour, np.float32)
        if self.weather == "snow":
            lit += (_SNOW - lit) * snow
        lit *= self._tint
        if self.weather == "rain":
            lit += (lit.mean() - lit) * 0.3
        haze = (0.3 + 0.5 * distance) if self.weather == "fog" else 0.14 * distance
        lit += (np.array(self.horizon, np.float32) - lit) * haze
        r, g, b = (int(v) for v in np.clip(lit, 0, 255))
        return r, g, b
