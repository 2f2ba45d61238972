"""Images with failures of generators (no complete object), for the oracles' class `none`.

The object is painted over, cut in half, faded, scrambled, half of another class, or two scenes are blended.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from research.objects.pictures import render_pair
from research.pictures.augmentation import SIDE
from research.pictures.rendered_once import Pixels
from tinyworld.objects.world import CLASSES, Scene

KINDS = ("gone", "half", "ghost", "scrambled", "chimera", "blend")
_TILE = 16


def failure(scene: Scene, other_scene: Scene, random: np.random.Generator) -> tuple[Pixels, str]:
    """A failed image of `scene` (128 × 128 × 3) and the kind of failure; `other_scene` is any scene to blend in."""
    kind = KINDS[int(random.integers(len(KINDS)))]
    image, mask = render_pair(scene)
    shape = mask == 1
    if kind == "blend":
        share = float(random.uniform(0.4, 0.6))
        return _mix(image, render_pair(other_scene)[0], np.full((SIDE, SIDE), share, np.float32)), kind
    if kind == "chimera":
        label = [name for name in CLASSES if name != scene.label][int(random.integers(len(CLASSES) - 1))]
        return _mix(image, render_pair(scene.changed(label=label))[0], _halve(shape, random)), kind
    if kind == "scrambled":
        return _scramble(image, shape, random), kind
    without = _without(image, shape, random)
    if kind == "gone":
        return without, kind
    if kind == "half":
        return _mix(image, without, _halve(shape, random)), kind
    return _mix(image, without, np.full((SIDE, SIDE), float(random.uniform(0.72, 0.9)), np.float32)), kind


def _without(image: Pixels, shape: NDArray[np.bool_], random: np.random.Generator) -> Pixels:
    """The object painted over: from its border, or from its surroundings."""
    grown = cv2.dilate(shape.astype(np.uint8), np.ones((7, 7), np.uint8))
    smooth = np.asarray(cv2.inpaint(image, grown, 3, cv2.INPAINT_TELEA), np.uint8)
    if random.random() < 0.5:
        return smooth
    beside = np.roll(smooth, int(random.choice((-1, 1))) * int(random.integers(44, 84)), axis=1)
    return _mix(smooth, beside, cv2.GaussianBlur(grown.astype(np.float32), (0, 0), 1.5))


def _halve(shape: NDArray[np.bool_], random: np.random.Generator) -> NDArray[np.float32]:
    """1 on one side of a line through the middle of the object, 0 on the other."""
    axis = int(random.integers(2))
    along = np.flatnonzero(shape.any(axis=axis))
    middle = int(np.quantile(along, random.uniform(0.4, 0.6))) if len(along) else SIDE // 2
    half = np.zeros((SIDE, SIDE), np.float32)
    if axis == 0:
        half[:, :middle] = 1
    else:
        half[:middle] = 1
    return np.asarray(half if random.random() < 0.5 else 1 - half, np.float32)


def _scramble(image: Pixels, shape: NDArray[np.bool_], random: np.random.Generator) -> Pixels:
    """The tiles that the object covers, exchanged among each other."""
    tiles = [
        (row, column)
        for row in range(0, SIDE, _TILE)
        for column in range(0, SIDE, _TILE)
        if shape[row : row + _TILE, column : column + _TILE].mean() > 0.25
    ]
    result = image.copy()
    for (row, column), place in zip(tiles, random.permutation(len(tiles)), strict=True):
        from_row, from_column = tiles[place]
        result[row : row + _TILE, column : column + _TILE] = image[
            from_row : from_row + _TILE, from_column : from_column + _TILE
        ]
    return np.asarray(cv2.GaussianBlur(result, (0, 0), 0.8), np.uint8)


def _mix(image: Pixels, other_image: Pixels, share: NDArray[np.float32]) -> Pixels:
    """Blend in `share` (128 × 128, 0 to 1) of the other image."""
    weight = share[..., None]
    return np.asarray(np.clip(image * (1 - weight) + other_image * weight, 0, 255), np.uint8)
