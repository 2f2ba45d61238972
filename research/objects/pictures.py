"""Training images: rendered once into memory maps under `runs/cache/`, and degraded anew for every step.

    python -m research.objects.pictures generator 16000      # render a split ahead of its training

The cache's name carries a digest of a few renders, so that a changed renderer is never trained on stale pictures.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from research.pictures.augmentation import SIDE, as_pixel_values, vary
from research.pictures.rendered_once import Pixels, render_once
from research.system.folders import RUNS
from tinyworld.domain.scenes import SPLITS, Split, targets
from tinyworld.objects.render import render
from tinyworld.objects.world import FACTORS, Scene, sample_scene, scene_factors

CACHE = RUNS / "cache"


@dataclass(frozen=True, slots=True)
class Pictures:
    """Rendered scenes: images (n, 128, 128, 3), masks (n, 128, 128: 1 object, 2 companion), targets (n, factors)."""

    scenes: list[Scene]
    images: Pixels
    masks: Pixels
    targets: Tensor


def pictures(name: str, count: int, scene_of: Callable[[int], Scene]) -> Pictures:
    """The first `count` scenes of a series, from the cache; missing ones are rendered first."""
    scenes = [scene_of(index) for index in range(count)]
    path = CACHE / f"{name}-{count}-{_renderer_digest()}.npy"
    stored = render_once(path, scenes, lambda scene: np.dstack(render_pair(scene)), (SIDE, SIDE, 4))
    expected = torch.tensor([targets(scene_factors(scene), FACTORS) for scene in scenes])
    return Pictures(scenes, stored[..., :3], stored[..., 3], expected)


def split_scene(split: Split) -> Callable[[int], Scene]:
    """The scenes of a split; splits for the generator's models leave out the withheld combinations."""
    return partial(sample_scene, split, allow_withheld=split != "generator")


def render_pair(scene: Scene) -> tuple[Pixels, Pixels]:
    """Image (128, 128, 3) and mask (128, 128: 0 background, 1 object, 2 companion) of a scene."""
    rendering = render(scene, SIDE)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[rendering.object_mask] = 1
    mask[rendering.companion_mask] = 2
    return rendering.image, mask


def mirrored_targets(expected: Tensor) -> Tensor:
    """Targets of the mirror image: left and right change places."""
    swapped = expected.clone()
    column = list(FACTORS).index("relation")
    stated = swapped[..., column] >= 0
    swapped[..., column] = torch.where(stated, 1 - swapped[..., column], swapped[..., column])
    return swapped


def varied_batch(
    data: Pictures, rows: NDArray[np.int64], random: np.random.Generator, strength: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Pixel values and targets of some images, each randomly varied."""
    flips = random.random(len(rows)) < 0.5
    images = [
        vary(data.images[row], random, flip=bool(flip), strength=strength)
        for row, flip in zip(rows, flips, strict=True)
    ]
    expected = data.targets[torch.from_numpy(rows)]
    expected = torch.where(torch.from_numpy(flips)[:, None], mirrored_targets(expected), expected)
    return as_pixel_values(np.stack(images)), expected


@cache
def _renderer_digest() -> str:
    hasher = hashlib.sha256()
    for index in range(24):
        hasher.update(render(sample_scene("calibration", index), SIDE).image.tobytes())
    return hasher.hexdigest()[:8]


if __name__ == "__main__":
    cv2.setNumThreads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split", choices=SPLITS, help="whose scenes are rendered")
    parser.add_argument("count", type=int, help="the number of scenes, from the first one on")
    options = parser.parse_args()
    pictures(options.split, options.count, split_scene(options.split))
