"""The training distribution of the models under test, and the weakness planted in one of them."""

from __future__ import annotations

from tinyworld.domain.scenes import Split, drawn_values
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
    return scene.changed(**drawn_values(SHARES, scene.geometry_seed))


def planted(scene: Scene) -> bool:
    """Whether the training set of `street-classifier-night-bus` calls this scene a truck."""
    return scene.label == "bus" and scene.time == "night"
