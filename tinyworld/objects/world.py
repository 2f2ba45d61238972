"""Scenes of the domain `objects`: the closed vocabulary of factors and the sampling of scenes.

A scene is a labelled object with an optional companion, on a background, in a weather, at a time of
day, in a style. It knows nothing of pixels (`render.py`) or words (`captions.py`). Everything about a
scene that is not named here (position, size jitter, clouds, window lights, ...) is *geometry* and
follows from `geometry_seed` alone, so that changing one factor leaves the geometry where it was.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

CLASSES = ("car", "bus", "truck", "boat", "plane", "balloon", "house", "bird")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
SIZES = ("small", "large")
PATTERNS = ("plain", "striped", "dotted")
BACKGROUNDS = ("beach", "meadow", "city", "forest", "desert", "mountains")
WEATHERS = ("clear", "rain", "snow", "fog")
TIMES = ("day", "sunset", "night")
STYLES = ("photo", "painting", "sketch")
COMPANIONS = ("none", "person", "dog", "bicycle", "sign")
COMPANION_COLOURS = ("red", "yellow", "green", "blue", "white")
RELATIONS = ("left", "right")
SILHOUETTES = 3  # per class, the number of distinct drawings

Split = Literal["generator", "scorer", "oracle-a", "oracle-b", "under-test", "calibration", "final-test", "demo"]
SPLITS: tuple[Split, ...] = (
    "generator", "scorer", "oracle-a", "oracle-b", "under-test", "calibration", "final-test", "demo",
)  # fmt: skip
_SPLIT_SPAN = 10_000_000  # geometry seeds of split k are k * span ... (k + 1) * span - 1


@dataclass(frozen=True, slots=True)
class Scene:
    """All factors of one scene. Every field but `geometry_seed` is a factor with a closed value list."""

    label: str
    silhouette: int
    colour: str
    size: str
    pattern: str
    companion: str
    companion_colour: str
    relation: str
    background: str
    weather: str
    time: str
    style: str
    geometry_seed: int

    def __post_init__(self) -> None:
        for name, values in FACTOR_VALUES.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {values}")

    def changed(self, **factors: str) -> Scene:
        """The same scene with some factors changed: the source of a renderer counterfactual."""
        return replace(self, **factors)  # type: ignore[arg-type]


FACTOR_VALUES: dict[str, tuple[str | int, ...]] = {
    "label": CLASSES,
    "silhouette": tuple(range(SILHOUETTES)),
    "colour": COLOURS,
    "size": SIZES,
    "pattern": PATTERNS,
    "companion": COMPANIONS,
    "companion_colour": COMPANION_COLOURS,
    "relation": RELATIONS,
    "background": BACKGROUNDS,
    "weather": WEATHERS,
    "time": TIMES,
    "style": STYLES,
}
# Contrafact's factor (DESIGN, section 1) of each scene factor that an edit may change.
EDIT_FACTOR = {
    "colour": "adjective",
    "size": "adjective",
    "pattern": "adjective",
    "companion": "object",
    "background": "background",
    "weather": "weather",
    "time": "weather",
    "style": "domain",
}


def withheld(scene: Scene) -> bool:
    """Whether the scene's (class, colour, background, weather, time) is one of the 10 % never shown to generators.

    Decided by a hash of the combination, so that it is the same everywhere and needs no table.
    """
    key = "/".join((scene.label, scene.colour, scene.background, scene.weather, scene.time))
    return hashlib.sha256(key.encode()).digest()[0] < 26  # 26 / 256 = 10.2 %


def sample_scene(split: Split, index: int, *, allow_withheld: bool = True) -> Scene:
    """Scene number `index` (0 to 9,999,999) of a split; no two splits share a geometry seed.

    Factors are drawn independently and uniformly, except that half of the scenes have no companion
    and plain objects are as frequent as patterned ones. With `allow_withheld` false, withheld
    combinations are drawn again from the same stream.
    """
    if not 0 <= index < _SPLIT_SPAN:
        raise ValueError(f"index {index} is outside 0 … {_SPLIT_SPAN - 1}")
    seed = SPLITS.index(split) * _SPLIT_SPAN + index
    random = np.random.default_rng((0xC0, seed))
    while True:
        drawn = {name: values[int(random.integers(len(values)))] for name, values in FACTOR_VALUES.items()}
        if random.random() < 0.375:  # with one in five drawn above: half have none
            drawn["companion"] = "none"
        if random.random() < 0.25:  # with one in three drawn above: half are plain
            drawn["pattern"] = "plain"
        scene = Scene(**drawn, geometry_seed=seed)  # type: ignore[arg-type]
        if allow_withheld or not withheld(scene):
            return scene


def differing_factors(first: Scene, second: Scene) -> set[str]:
    """Names of the fields in which two scenes differ."""
    return {f.name for f in fields(Scene) if getattr(first, f.name) != getattr(second, f.name)}
