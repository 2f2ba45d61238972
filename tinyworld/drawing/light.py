"""Weather and time of day as light: the colours of the sky and of lit surfaces."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tinyworld.drawing.canvas import Colour, Image

_SKIES: dict[tuple[str, str], tuple[Colour, Colour]] = {  # (time, weather): zenith, horizon
    ("day", "clear"): ((84, 168, 244), (204, 232, 250)),
    ("day", "rain"): ((104, 116, 134), (158, 168, 180)),
    ("day", "snow"): ((176, 188, 206), (222, 228, 236)),
    ("day", "fog"): ((198, 203, 208), (222, 224, 225)),
    ("sunset", "clear"): ((98, 72, 156), (255, 160, 78)),
    ("sunset", "rain"): ((84, 66, 98), (196, 122, 96)),
    ("sunset", "snow"): ((146, 112, 158), (252, 186, 150)),
    ("sunset", "fog"): ((182, 146, 158), (238, 196, 170)),
    ("night", "clear"): ((10, 14, 46), (44, 52, 104)),
    ("night", "rain"): ((20, 24, 38), (50, 56, 76)),
    ("night", "snow"): ((34, 40, 72), (84, 92, 126)),
    ("night", "fog"): ((54, 60, 80), (92, 98, 116)),
}
_TIME_TINT = {"day": (1.0, 1.0, 1.0), "sunset": (1.0, 0.74, 0.6), "night": (0.42, 0.48, 0.66)}
_OBJECT_TINT = {"day": (1.0, 1.0, 1.0), "sunset": (1.0, 0.88, 0.78), "night": (0.64, 0.66, 0.78)}
_WEATHER_TINT = {"clear": 1.0, "rain": 0.76, "snow": 0.96, "fog": 0.94}
_SNOW = np.array([242, 246, 252], np.float32)


class Light:
    """What the light of one weather and time does to colours."""

    def __init__(self, weather: str, time: str) -> None:
        self.weather, self.time = weather, time
        self.zenith, self.horizon = _SKIES[time, weather]
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


@lru_cache(maxsize=64)
def sky(zenith: Colour, horizon: Colour, side: int) -> Image:
    """The sky from the top of the image to two thirds down (side x side x 4, the shade being 0)."""
    t = np.clip(np.linspace(0, 1.55, side, dtype=np.float32), 0, 1)[:, None]
    rows = np.array([*zenith, 0], np.float32) * (1 - t) + np.array([*horizon, 0], np.float32) * t
    return np.ascontiguousarray(np.broadcast_to(rows[:, None], (side, side, 4)).astype(np.uint8))
