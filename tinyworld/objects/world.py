"""Scenes of the domain `objects`: the closed vocabulary of factors and the sampling of scenes.

A scene is a labelled object with an optional companion, on a background, in a weather, at a time of
day, in a style. It knows nothing of pixels (`render.py`) or words (`captions.py`). Everything about a
scene that is not named here (position, size jitter, clouds, window lights, ...) is *geometry* and
follows from `geometry_seed` alone, so that changing one factor leaves the geometry where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tinyworld.domain.scenes import (
    COLOURS,
    COMPANION_COLOURS,
    STYLES,
    TIMES,
    WEATHERS,
    Split,
    check_values,
    geometry_seed,
    withheld_combination,
)

CLASSES = ("car", "bus", "truck", "boat", "plane", "balloon", "house", "bird")
SIZES = ("small", "large")
PATTERNS = ("plain", "striped", "dotted")
BACKGROUNDS = ("beach", "meadow", "city", "forest", "desert", "mountains")
COMPANIONS = ("none", "person", "dog", "bicycle", "sign")
RELATIONS = ("left", "right")
SILHOUETTES = 3  # per class, the number of distinct drawings


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
        check_values(self, FACTOR_VALUES)

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
# What captions and checks can name; `silhouette` is left out.
FACTORS: dict[str, tuple[str, ...]] = {
    name: tuple(str(value) for value in values) for name, values in FACTOR_VALUES.items() if name != "silhouette"
}
# Contrafact's factor of each scene factor that an edit may change.
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
    """Whether (class, colour, background, weather, time) is one of the 10 % never shown to generators."""
    return withheld_combination(scene.label, scene.colour, scene.background, scene.weather, scene.time)


def scene_factors(scene: Scene) -> dict[str, str]:
    """All factors that the image of a scene shows."""
    shown = {name: str(getattr(scene, name)) for name in FACTORS}
    if scene.companion == "none":
        del shown["companion_colour"], shown["relation"]
    return shown


def mirrored(scene: Scene) -> Scene:
    """The scene of the mirror image, for captions and targets (its geometry seed stays that of the original)."""
    return scene.changed(relation="left" if scene.relation == "right" else "right")


def sample_scene(split: Split, index: int, *, allow_withheld: bool = True) -> Scene:
    """Scene number `index` (0 to 9,999,999) of a split; no two splits share a geometry seed.

    Factors are drawn independently and uniformly, except that half of the scenes have no companion
    and plain objects are as frequent as patterned ones. With `allow_withheld` false, withheld
    combinations are drawn again from the same stream.
    """
    seed = geometry_seed("objects", split, index)
    random = np.random.default_rng((0xC0, seed))
    while True:
        values_of_scene = {name: values[int(random.integers(len(values)))] for name, values in FACTOR_VALUES.items()}
        if random.random() < 0.375:  # with one in five drawn above: half have none
            values_of_scene["companion"] = "none"
        if random.random() < 0.25:  # with one in three drawn above: half are plain
            values_of_scene["pattern"] = "plain"
        scene = Scene(**values_of_scene, geometry_seed=seed)  # type: ignore[arg-type]
        if allow_withheld or not withheld(scene):
            return scene
