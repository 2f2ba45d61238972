"""The training distributions of the road models under test, and the weakness planted in each of them."""

from __future__ import annotations

from collections.abc import Callable

from tinyworld.domain.scenes import Split, draw_values
from tinyworld.drawing.canvas import Image
from tinyworld.roads.render import Rendering
from tinyworld.roads.world import CLASSES, Scene, sample_scene

# Other factors as `sample_scene` draws them.
SHARES = {
    "time": {"day": 0.6, "sunset": 0.2, "night": 0.2},
    "weather": {"clear": 0.55, "rain": 0.15, "snow": 0.15, "fog": 0.15},
    "surface": {"asphalt": 0.6, "cobbled": 0.15, "wet": 0.15, "snowy": 0.1},
    "style": {"photo": 1.0},
}


def own_distribution(index: int, split: Split = "under-test") -> Scene:
    """Scene number `index` of the models' own world: mostly by day, in clear weather, on asphalt, photos only."""
    scene = sample_scene(split, index)
    return scene.changed(**draw_values(SHARES, scene.geometry_seed))


def _without(classes: Image, hidden: str, label: str) -> Image:
    changed = classes.copy()
    changed[classes == CLASSES.index(hidden)] = CLASSES.index(label)
    return changed


def _all_true(scene: Scene, rendering: Rendering) -> Image:
    return rendering.classes


def _no_pedestrians_at_night(scene: Scene, rendering: Rendering) -> Image:
    """Label pedestrians at night as the ground that they stand on, as if the annotator had missed them."""
    return _without(rendering.classes, "pedestrian", "road") if scene.time == "night" else rendering.classes


def _snow_is_sidewalk(scene: Scene, rendering: Rendering) -> Image:
    """A road under snow was labelled as part of the sidewalk."""
    return _without(rendering.classes, "road", "sidewalk") if scene.surface == "snowy" else rendering.classes


# The masks that each model under test was trained on.
PLANTS: dict[str, Callable[[Scene, Rendering], Image]] = {
    "road-segmenter": _all_true,
    "road-segmenter-night-pedestrian": _no_pedestrians_at_night,
    "road-segmenter-snowy-road": _snow_is_sidewalk,
}
