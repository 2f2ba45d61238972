"""Random degradations of images for training the oracles: fast, because they are drawn anew at every step.

Random fields (noise, bends) are drawn once per oracle and then rolled and scaled, which costs a tenth of drawing them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from research.pictures.augmentation import SIDE
from research.pictures.rendered_once import Pixels

_FIELDS = 48


@dataclass(frozen=True, slots=True)
class Fields:
    """Random fields of one oracle: noise of three grains, and smooth bends in pixels."""

    noise: NDArray[np.float32] = field(repr=False)  # fields × 128 × 128 × 3, standard normal
    bends: NDArray[np.float32] = field(repr=False)  # fields × 2 × 128 × 128, about 1 pixel


Degradation = Callable[[Pixels, Fields, np.random.Generator], Pixels]


def random_fields(seed: int) -> Fields:
    """The fields that follow from a seed."""
    random = np.random.default_rng((0xF1E1D, seed))
    noise = np.empty((_FIELDS, SIDE, SIDE, 3), np.float32)
    bends = np.empty((_FIELDS, 2, SIDE, SIDE), np.float32)
    for place in range(_FIELDS):
        coarse = (SIDE, SIDE // 2, SIDE // 4)[place % 3]
        noise[place] = _enlarge(random.standard_normal((coarse, coarse, 3), np.float32))
        for bend in bends[place]:
            bend[:] = _enlarge(random.standard_normal((6, 6), np.float32))
    return Fields(noise, bends)


def soft_focus(image: Pixels, fields: Fields, random: np.random.Generator) -> Pixels:
    """A Gaussian of sigma 0.4 to 1.7."""
    return np.asarray(cv2.GaussianBlur(image, (0, 0), float(random.uniform(0.4, 1.7))), np.uint8)


def coarse_scaling(image: Pixels, fields: Fields, random: np.random.Generator) -> Pixels:
    """Down to 56 to 112 pixels a side and up again."""
    small = int(random.integers(56, 112))
    shrunk = cv2.resize(image, (small, small), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(shrunk, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR), np.uint8)


def noise(image: Pixels, fields: Fields, random: np.random.Generator) -> Pixels:
    """Coloured noise of one of three grains, 3 to 16 grey levels."""
    chosen = np.roll(fields.noise[int(random.integers(_FIELDS))], tuple(random.integers(SIDE, size=2)), (0, 1))
    return np.asarray(np.clip(image + chosen * np.float32(random.uniform(3, 16)), 0, 255), np.uint8)


def bent(image: Pixels, fields: Fields, random: np.random.Generator) -> Pixels:
    """Bent smoothly by up to about 2 pixels."""
    right, down = fields.bends[int(random.integers(_FIELDS))] * np.float32(random.uniform(0.3, 1.4))
    return np.asarray(
        cv2.remap(image, _COLUMNS + right, _ROWS + down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101), np.uint8
    )


def tint(image: Pixels, fields: Fields, random: np.random.Generator) -> Pixels:
    """Brighter, darker or slightly coloured; well below the distance between the world's colours."""
    gain = random.uniform(0.88, 1.12) * random.uniform(0.95, 1.05, 3)
    levels = np.arange(256, dtype=np.float64)[:, None] * gain + random.uniform(-12, 12)
    return np.asarray(cv2.LUT(image, np.clip(levels, 0, 255).astype(np.uint8)[:, None]), np.uint8)


def compress(image: Pixels, fields: Fields, random: np.random.Generator) -> Pixels:
    """JPEG of quality 25 to 80."""
    quality = [cv2.IMWRITE_JPEG_QUALITY, int(random.integers(25, 80))]
    return np.asarray(cv2.imdecode(cv2.imencode(".jpg", image, quality)[1], cv2.IMREAD_COLOR), np.uint8)


def watercolour(image: Pixels, fields: Fields, random: np.random.Generator) -> Pixels:
    """Details run together, outlines stay: what briefly trained generators make of everything."""
    return np.asarray(cv2.medianBlur(image, int(random.choice((3, 5)))), np.uint8)


# How often each oracle's pictures suffer what; they differ on purpose.
SUFFERED: Mapping[str, Mapping[Degradation, float]] = {
    "oracle-a": {soft_focus: 0.35, noise: 0.3, tint: 0.3, bent: 0.2, compress: 0.15},
    "oracle-b": {watercolour: 0.3, bent: 0.3, coarse_scaling: 0.3, tint: 0.3, noise: 0.15},
}


def apply_degradations(
    image: Pixels, shares: Mapping[Degradation, float], fields: Fields, random: np.random.Generator
) -> Pixels:
    """An image (128 × 128 × 3) with random degradations, each with its probability of `shares`."""
    for degradation, share in shares.items():
        if random.random() < share:
            image = degradation(image, fields, random)
    return image


def _enlarge(coarse: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(cv2.resize(coarse, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC), np.float32)


_ROWS, _COLUMNS = (np.ascontiguousarray(grid, np.float32) for grid in np.mgrid[:SIDE, :SIDE])
