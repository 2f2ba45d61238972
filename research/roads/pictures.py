"""Training images of driving scenes: rendered once into memory maps under `runs/roads/cache/`.

The cache's name carries a digest of a few renders, so that a changed renderer is never trained on stale pictures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from research.pictures.augmentation import SIDE
from research.pictures.rendered_once import render_once
from research.system.folders import RUNS
from tinyworld.drawing.canvas import Image
from tinyworld.roads.render import Rendering, render
from tinyworld.roads.world import Scene, sample_scene

CACHE = RUNS / "roads" / "cache"


@dataclass(frozen=True, slots=True)
class Pictures:
    """Rendered scenes: images (n x 128 x 128 x 3), class masks and instance numbers (n x 128 x 128)."""

    scenes: list[Scene]
    images: Image
    classes: Image
    instances: Image

    def rendering(self, row: int) -> Rendering:
        """One of the pictures as rendered, without the classes of its instances."""
        return Rendering(self.images[row], self.classes[row], self.instances[row], {})


def pictures(name: str, count: int, scene_of: Callable[[int], Scene]) -> Pictures:
    """The first `count` scenes of a series, from the cache; missing ones are rendered first."""
    scenes = [scene_of(index) for index in range(count)]
    path = CACHE / f"{name}-{count}-{_renderer_digest()}.npy"
    stored = render_once(path, scenes, _planes, (SIDE, SIDE, 5))
    return Pictures(scenes, stored[..., :3], stored[..., 3], stored[..., 4])


def _planes(scene: Scene) -> Image:
    rendering = render(scene, SIDE, SIDE)
    return np.dstack((rendering.image, rendering.classes, rendering.instances))


@cache
def _renderer_digest() -> str:
    hasher = hashlib.sha256()
    for index in range(24):
        rendering = render(sample_scene("calibration", index), SIDE, SIDE)
        hasher.update(rendering.image.tobytes() + rendering.classes.tobytes())
    return hasher.hexdigest()[:8]
