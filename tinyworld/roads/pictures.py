"""Driving scenes to train on: rendered once into memory maps under `runs/roads/cache/`.

The cache's name carries a digest of a few renders, so that a changed renderer is never trained on stale pictures.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from tinyworld.drawing.canvas import Image
from tinyworld.roads.render import RoadRendering, render
from tinyworld.roads.world import RoadScene, sample_scene
from tinyworld.training_loop import RUNS

SIDE = 128
CACHE = RUNS / "roads" / "cache"
Labelling = Callable[[RoadScene, RoadRendering], Image]


@dataclass(frozen=True, slots=True)
class RoadPictures:
    """Rendered scenes: images (n x 128 x 128 x 3), class masks and instance numbers (n x 128 x 128)."""

    scenes: list[RoadScene]
    images: Image
    classes: Image
    instances: Image

    def rendering(self, row: int) -> RoadRendering:
        """One of them as the renderer gave it, but for what its instances are."""
        return RoadRendering(self.images[row], self.classes[row], self.instances[row], {})


def pictures(name: str, count: int, scene_of: Callable[[int], RoadScene]) -> RoadPictures:
    """The first `count` scenes of a series, from the cache, rendered first where they are not there yet."""
    scenes = [scene_of(index) for index in range(count)]
    path = CACHE / f"{name}-{count}-{_renderer_digest()}.npy"
    if not path.exists():
        _render_into(path, scenes)
    stored = np.load(path, mmap_mode="r")
    return RoadPictures(scenes, stored[..., :3], stored[..., 3], stored[..., 4])


def _render_into(path: Path, scenes: list[RoadScene]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npy")
    stored = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=(len(scenes), SIDE, SIDE, 5))
    started = time.monotonic()
    for place, scene in enumerate(scenes):
        rendering = render(scene, SIDE, SIDE)
        stored[place, ..., :3] = rendering.image
        stored[place, ..., 3], stored[place, ..., 4] = rendering.classes, rendering.instances
        if (place + 1) % 500 == 0:
            print(f"{path.name}: {place + 1} of {len(scenes)}, {time.monotonic() - started:.0f} s", flush=True)
    stored.flush()
    part.replace(path)


@cache
def _renderer_digest() -> str:
    hasher = hashlib.sha256()
    for index in range(24):
        rendering = render(sample_scene("calibration", index), SIDE, SIDE)
        hasher.update(rendering.image.tobytes() + rendering.classes.tobytes())
    return hasher.hexdigest()[:8]
