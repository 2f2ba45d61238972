"""Training images: rendered once into memory maps under `runs/cache/`, and degraded anew for every step.

    python -m tinyworld.objects.pictures generator 16000      # render a split ahead of its training

The cache's name carries a digest of a few renders, so that a changed renderer is never trained on stale pictures.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyworld.folders import RUNS
from tinyworld.objects.render import render
from tinyworld.objects.world import FACTORS, Scene, sample_scene, scene_factors
from tinyworld.rendered_once import rendered_once
from tinyworld.scenes import Split, targets

SIDE = 128
Pixels = NDArray[np.uint8]
LARGEST_SHIFT = 6


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
    path = RUNS / "cache" / f"{name}-{count}-{_renderer_digest()}.npy"
    stored = rendered_once(path, scenes, lambda scene: np.dstack(rendered(scene)), (SIDE, SIDE, 4))
    wanted = torch.tensor([targets(scene_factors(scene), FACTORS) for scene in scenes])
    return Pictures(scenes, stored[..., :3], stored[..., 3], wanted)


def split_scene(split: Split) -> Callable[[int], Scene]:
    """The scenes of a split; splits for the generator's models leave out the withheld combinations."""
    return partial(sample_scene, split, allow_withheld=split != "generator")


def rendered(scene: Scene) -> tuple[Pixels, Pixels]:
    """Image (128, 128, 3) and mask (128, 128: 0 background, 1 object, 2 companion) of a scene."""
    rendering = render(scene, SIDE)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[rendering.object_mask] = 1
    mask[rendering.companion_mask] = 2
    return rendering.image, mask


def as_pixel_values(images: NDArray[np.uint8]) -> Tensor:
    """uint8 (n, height, width, 3) → float (n, 3, height, width) in -1 … 1, as the shipped image processors do."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)


def degrade(image: Pixels, random: np.random.Generator, strength: float = 1.0) -> Pixels:
    """A copy with some of: soft focus, coarse scaling, noise, JPEG, a slight shift of colours.

    `strength` 0 to 1 scales how often. Colour shifts stay well below the distance between the world's colours.
    """
    spoilt = np.array(image)
    if random.random() < 0.35 * strength:
        spoilt = cv2.GaussianBlur(spoilt, (0, 0), float(random.uniform(0.4, 1.6)))
    if random.random() < 0.25 * strength:
        small = int(random.integers(56, 112))
        spoilt = cv2.resize(spoilt, (small, small), interpolation=cv2.INTER_AREA)
        spoilt = cv2.resize(spoilt, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    if random.random() < 0.3 * strength:
        tint = random.uniform(0.88, 1.12) * random.uniform(0.95, 1.05, 3)
        spoilt = np.clip(spoilt * tint.astype(np.float32) + np.float32(random.uniform(-12, 12)), 0, 255).astype(
            np.uint8
        )
    if random.random() < 0.3 * strength:
        coarse = int(random.choice((128, 128, 64, 32)))
        noise = random.standard_normal((coarse, coarse, 3), np.float32) * np.float32(random.uniform(3, 16))
        if coarse < SIDE:
            noise = cv2.resize(noise, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
        spoilt = np.clip(spoilt + noise, 0, 255).astype(np.uint8)
    if random.random() < 0.2 * strength:
        quality = [cv2.IMWRITE_JPEG_QUALITY, int(random.integers(25, 80))]
        spoilt = np.asarray(cv2.imdecode(cv2.imencode(".jpg", spoilt, quality)[1], cv2.IMREAD_COLOR), np.uint8)
    return np.asarray(spoilt, np.uint8)


def shifted(image: NDArray[np.uint8], by: tuple[int, int]) -> Pixels:
    """Shifted by (down, right) pixels, the border filled by reflection."""
    down, right = by
    border = LARGEST_SHIFT
    wide = cv2.copyMakeBorder(image, border, border, border, border, cv2.BORDER_REFLECT_101)
    return np.asarray(wide[border - down : border - down + SIDE, border - right : border - right + SIDE], np.uint8)


def wobbled(image: Pixels, random: np.random.Generator) -> Pixels:
    """Bent smoothly by up to about 2 pixels, as generated pictures often are."""
    bends = random.standard_normal((2, 6, 6), np.float32) * np.float32(random.uniform(0.3, 1.4))
    down, right = (cv2.resize(bend, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) for bend in bends)
    rows, columns = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    bent = cv2.remap(image, columns + right, rows + down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(bent, np.uint8)


def mirrored_targets(wanted: Tensor) -> Tensor:
    """Targets of the mirror image: left and right change places."""
    swapped = wanted.clone()
    column = list(FACTORS).index("relation")
    known = swapped[..., column] >= 0
    swapped[..., column] = torch.where(known, 1 - swapped[..., column], swapped[..., column])
    return swapped


def varied(image: Pixels, random: np.random.Generator, *, flip: bool, strength: float = 1.0) -> Pixels:
    """Optionally flipped, shifted by up to 6 pixels, sometimes bent, then degraded."""
    moved = image[:, ::-1] if flip else image
    by = (
        int(random.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1)),
        int(random.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1)),
    )
    moved = shifted(np.ascontiguousarray(moved), by)
    if random.random() < 0.25 * strength:
        moved = wobbled(moved, random)
    return degrade(moved, random, strength)


def varied_batch(
    data: Pictures, rows: NDArray[np.int64], random: np.random.Generator, strength: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Pixel values and targets of some images, each randomly varied."""
    flips = random.random(len(rows)) < 0.5
    images = [
        varied(data.images[row], random, flip=bool(flip), strength=strength)
        for row, flip in zip(rows, flips, strict=True)
    ]
    wanted = data.targets[torch.from_numpy(rows)]
    wanted = torch.where(torch.from_numpy(flips)[:, None], mirrored_targets(wanted), wanted)
    return as_pixel_values(np.stack(images)), wanted


@cache
def _renderer_digest() -> str:
    hasher = hashlib.sha256()
    for index in range(24):
        hasher.update(render(sample_scene("calibration", index), SIDE).image.tobytes())
    return hasher.hexdigest()[:8]


if __name__ == "__main__":
    cv2.setNumThreads(1)
    wanted_split: Split = sys.argv[1]  # type: ignore[assignment]
    pictures(wanted_split, int(sys.argv[2]), split_scene(wanted_split))
