"""Training data of the generator in both domains: images, captions, control images, loss weights.

Controls are edges (128 x 128, 0 and 1) or, for a ControlNet of segmentation, classes in colours (128 x 128 x 3, uint8),
one in eight of them black, as edges are sometimes left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from research.objects.control_edges import training_edges
from research.objects.pictures import Pictures, pictures, split_scene
from research.pictures.rendered_once import Pixels
from research.roads import control_edges as roads
from research.roads.pictures import Pictures as RoadPictures
from research.roads.pictures import pictures as road_pictures
from tinyworld.objects.captions import caption
from tinyworld.roads import captions as road_captions
from tinyworld.roads.render import colour_map
from tinyworld.roads.world import Scene
from tinyworld.roads.world import sample_scene as sample_road

ControlKind = Literal["canny", "segmentation"]
CONTROL_KINDS: tuple[ControlKind, ...] = ("canny", "segmentation")
OBJECT_COLOURS = np.array(((0, 0, 0), (220, 90, 40), (60, 120, 220)), np.uint8)  # background, object, companion
_DROPPED = 0.12


@dataclass(frozen=True, slots=True)
class Material:
    """Images by number, 0 to `count` - 1, with their training data."""

    count: int
    image: Callable[[int], Pixels]  # 128 x 128 x 3
    caption: Callable[[int, int], str]  # of a picture, by seed
    control: Callable[[ControlKind, int, np.random.Generator], Pixels]
    weighty: Callable[[int], Pixels]  # 128 x 128: 1 where the loss counts more


def of_objects(data: Pictures) -> Material:
    """The objects domain."""

    def control(kind: ControlKind, row: int, random: np.random.Generator) -> Pixels:
        if kind == "segmentation":
            return _drop_out(OBJECT_COLOURS[data.masks[row]], random)
        return training_edges(data.scenes[row], data.images[row], data.masks[row], random)

    return Material(
        len(data.scenes),
        lambda row: data.images[row],
        lambda row, seed: caption(data.scenes[row], seed),
        control,
        lambda row: (data.masks[row] > 0).astype(np.uint8),
    )


def of_roads(data: RoadPictures, siblings: RoadPictures) -> Material:
    """The roads domain; `siblings` have the layout of the images of the same number, and another look."""

    def control(kind: ControlKind, row: int, random: np.random.Generator) -> Pixels:
        if kind == "segmentation":
            return _drop_out(colour_map(data.classes[row]), random)
        return roads.training_edges(data.images[row], siblings.images[row], data.classes[row], random)

    return Material(
        len(data.scenes),
        lambda row: data.images[row],
        lambda row, seed: road_captions.caption(data.scenes[row], seed),
        control,
        lambda row: roads.standing(data.classes[row]),
    )


def material(domain: str, count: int) -> Material:
    """`count` images of the domain's generator split; missing ones are rendered first."""
    if domain == "objects":
        return of_objects(pictures("generator", count, split_scene("generator")))
    return of_roads(road_pictures("generator", count, _road), road_pictures("generator-siblings", count, _road_sibling))


def _road(index: int) -> Scene:
    return sample_road("generator", index, allow_withheld=False)


def _road_sibling(index: int) -> Scene:
    return roads.sibling(_road(index), np.random.default_rng((0x51B, index)))


def _drop_out(colours: Pixels, random: np.random.Generator) -> Pixels:
    return np.zeros_like(colours) if random.random() < _DROPPED else colours
