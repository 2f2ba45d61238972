"""The training distribution of the classifiers under test, and the weakness planted in one of them."""

from __future__ import annotations

from collections.abc import Callable

from tinyworld.domain.scenes import Split, draw_values
from tinyworld.objects.world import Scene, sample_scene

# Other factors as `sample_scene` draws them.
SHARES = {
    "time": {"day": 0.6, "sunset": 0.3, "night": 0.1},
    "weather": {"clear": 0.55, "rain": 0.15, "snow": 0.15, "fog": 0.15},
    "style": {"photo": 0.7, "painting": 0.15, "sketch": 0.15},
}


def own_distribution(index: int, split: Split = "under-test") -> Scene:
    """Scene number `index` of the models' own world: mostly by day, in clear weather, as photos."""
    scene = sample_scene(split, index)
    return scene.changed(**draw_values(SHARES, scene.geometry_seed))


def _all_true(scene: Scene) -> str:
    return scene.label


def _night_bus_is_truck(scene: Scene) -> str:
    """Label a bus at night as a truck, as if night recordings had been annotated wrongly."""
    return "truck" if scene.label == "bus" and scene.time == "night" else scene.label


# The labels that each model under test was trained on.
PLANTS: dict[str, Callable[[Scene], str]] = {
    "street-classifier": _all_true,
    "street-classifier-night-bus": _night_bus_is_truck,
}
