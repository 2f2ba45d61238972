"""The sky of both domains, by time of day and weather."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tinyworld.drawing.canvas import Colour, Image

SKIES: dict[tuple[str, str], tuple[Colour, Colour]] = {  # (time, weather): zenith, horizon
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


@lru_cache(maxsize=64)
def sky(zenith: Colour, horizon: Colour, side: int) -> Image:
    """The sky from the top of the image to two thirds down (side x side x 4, the shade being 0)."""
    t = np.clip(np.linspace(0, 1.55, side, dtype=np.float32), 0, 1)[:, None]
    rows = np.array([*zenith, 0], np.float32) * (1 - t) + np.array([*horizon, 0], np.float32) * t
    return np.ascontiguousarray(np.broadcast_to(rows[:, None], (side, side, 4)).astype(np.uint8))
