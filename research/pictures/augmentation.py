"""Images of both domains as networks read them in training: pixel values, and random changes of an image."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from research.pictures.rendered_once import Pixels

SIDE = 128  # pixels
LARGEST_SHIFT = 6  # pixels


def as_pixel_values(images: NDArray[np.uint8]) -> Tensor:
    """uint8 (n, height, width, 3) → float (n, 3, height, width) in -1 … 1, as the shipped image processors do."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)


def degrade(image: Pixels, random: np.random.Generator, strength: float = 1.0) -> Pixels:
    """A copy with some of: soft focus, coarse scaling, noise, JPEG, a slight shift of colours.

    `strength` 0 to 1 scales how often. Colour shifts stay well below the distance between the world's colours.
    """
    degraded = np.array(image)
    if random.random() < 0.35 * strength:
        degraded = cv2.GaussianBlur(degraded, (0, 0), float(random.uniform(0.4, 1.6)))
    if random.random() < 0.25 * strength:
        small = int(random.integers(56, 112))
        degraded = cv2.resize(degraded, (small, small), interpolation=cv2.INTER_AREA)
        degraded = cv2.resize(degraded, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    if random.random() < 0.3 * strength:
        tint = random.uniform(0.88, 1.12) * random.uniform(0.95, 1.05, 3)
        degraded = np.clip(degraded * tint.astype(np.float32) + np.float32(random.uniform(-12, 12)), 0, 255).astype(
            np.uint8
        )
    if random.random() < 0.3 * strength:
        coarse = int(random.choice((128, 128, 64, 32)))
        noise = random.standard_normal((coarse, coarse, 3), np.float32) * np.float32(random.uniform(3, 16))
        if coarse < SIDE:
            noise = cv2.resize(noise, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
        degraded = np.clip(degraded + noise, 0, 255).astype(np.uint8)
    if random.random() < 0.2 * strength:
        quality = [cv2.IMWRITE_JPEG_QUALITY, int(random.integers(25, 80))]
        degraded = np.asarray(cv2.imdecode(cv2.imencode(".jpg", degraded, quality)[1], cv2.IMREAD_COLOR), np.uint8)
    return np.asarray(degraded, np.uint8)


def shift(image: NDArray[np.uint8], by: tuple[int, int]) -> Pixels:
    """Shifted by (down, right) pixels, the border filled by reflection."""
    down, right = by
    border = LARGEST_SHIFT
    wide = cv2.copyMakeBorder(image, border, border, border, border, cv2.BORDER_REFLECT_101)
    return np.asarray(wide[border - down : border - down + SIDE, border - right : border - right + SIDE], np.uint8)


def move(images: Sequence[Pixels], random: np.random.Generator) -> list[Pixels]:
    """Images of one scene (a picture and its mask), flipped or not and shifted by up to 6 pixels, all alike."""
    step = -1 if random.random() < 0.5 else 1
    down, right = (int(by) for by in random.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1, 2))
    return [shift(np.ascontiguousarray(image[:, ::step]), (down, right)) for image in images]


def wobble(image: Pixels, random: np.random.Generator) -> Pixels:
    """Bent smoothly by up to about 2 pixels, as generated pictures often are."""
    bends = random.standard_normal((2, 6, 6), np.float32) * np.float32(random.uniform(0.3, 1.4))
    down, right = (cv2.resize(bend, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) for bend in bends)
    rows, columns = np.mgrid[:SIDE, :SIDE].astype(np.float32)
    bent = cv2.remap(image, columns + right, rows + down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(bent, np.uint8)


def vary(image: Pixels, random: np.random.Generator, *, flip: bool, strength: float = 1.0) -> Pixels:
    """Optionally flipped, shifted by up to 6 pixels, sometimes bent, then degraded."""
    changed = image[:, ::-1] if flip else image
    by = (
        int(random.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1)),
        int(random.integers(-LARGEST_SHIFT, LARGEST_SHIFT + 1)),
    )
    changed = shift(np.ascontiguousarray(changed), by)
    if random.random() < 0.25 * strength:
        changed = wobble(changed, random)
    return degrade(changed, random, strength)
