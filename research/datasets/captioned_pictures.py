"""Images and captions of both domains, the training data of captioner and scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from research.datasets.round_trips import round_trips
from research.objects import pictures as object_pictures
from research.pictures.augmentation import vary
from research.pictures.rendered_once import Pixels
from research.roads import pictures as road_pictures
from tinyworld.domain.descriptions import Description
from tinyworld.domain.scenes import Split, targets
from tinyworld.objects import captions, world
from tinyworld.objects.world import FACTORS
from tinyworld.roads import captions as road_captions
from tinyworld.roads import render as road_render
from tinyworld.roads import world as road_world

S = TypeVar("S")


class Rendered(Protocol):
    """Scenes and their images (n x 128 x 128 x 3)."""

    @property
    def scenes(self) -> list[Any]: ...
    @property
    def images(self) -> Pixels: ...


@dataclass(frozen=True)
class PictureDomain(Generic[S]):
    """The factors of a domain, its captions and their parser.

    `always` is the factor that a caption of the domain states if it is worth anything.
    """

    name: str
    values: Mapping[str, tuple[str, ...]]  # of each factor
    always: str
    sample: Callable[..., S]  # split, index, allow_withheld=
    withheld: Callable[[S], bool]
    rendered: Callable[[str, int, Callable[[int], S]], Rendered]  # the first scenes of a series, from the cache
    picture: Callable[[S], Pixels]  # 128 x 128 x 3
    shown: Callable[[S], dict[str, str]]  # all factors that the picture shows
    mirrored: Callable[[S], S]  # what the mirror image shows
    describe: Callable[..., Description]  # scene, seed, omitted=
    read: Callable[[str], dict[str, str]]

    def targets(self, stated: Mapping[str, str]) -> list[int]:
        """Training targets, in the order of `values`."""
        return targets(stated, self.values)

    def scenes(self, first: int, count: int, split: Split = "final-test") -> list[S]:
        """Some scenes of a split, including withheld combinations."""
        return [self.sample(split, first + index) for index in range(count)]


OBJECTS = PictureDomain[world.Scene](
    name="objects",
    values=FACTORS,
    always="label",
    sample=world.sample_scene,
    withheld=world.withheld,
    rendered=object_pictures.pictures,
    picture=lambda scene: object_pictures.render_pair(scene)[0],
    shown=world.scene_factors,
    mirrored=world.mirrored,
    describe=captions.describe,
    read=captions.read,
)
ROADS = PictureDomain[road_world.Scene](
    name="roads",
    values=road_world.FACTOR_VALUES,
    always="surface",
    sample=road_world.sample_scene,
    withheld=road_world.withheld,
    rendered=road_pictures.pictures,
    picture=lambda scene: road_render.render(scene).image,
    shown=road_world.scene_factors,
    mirrored=lambda scene: scene,  # no factor says left or right
    describe=road_captions.describe,
    read=road_captions.read,
)
PICTURE_DOMAINS: dict[str, PictureDomain[Any]] = {domain.name: domain for domain in (OBJECTS, ROADS)}


class TrainingView(NamedTuple):
    """A degraded image for one training step, and the scene that it shows."""

    scene: Any
    image: Pixels  # 128 x 128 x 3
    targets: list[int]


@dataclass(frozen=True, slots=True)
class Album:
    """Training images of a domain."""

    domain: PictureDomain[Any]
    scenes: list[Any]
    images: Pixels  # n x 128 x 128 x 3

    def __len__(self) -> int:
        return len(self.scenes)

    def view(self, row: int, random: np.random.Generator, *, flip: bool) -> TrainingView:
        """Image number `row`, randomly varied and optionally flipped."""
        scene = self.domain.mirrored(self.scenes[row]) if flip else self.scenes[row]
        image = vary(self.images[row], random, flip=flip)
        return TrainingView(scene, image, self.domain.targets(self.domain.shown(scene)))


def album(domain: str, split: Split, count: int, restored: int = 0) -> Album:
    """The first `count` images of a split, and `restored` of them once more after a round trip of the autoencoder.

    The generator's split leaves out the withheld combinations. Images that are not in the cache are rendered first.
    """
    shown = PICTURE_DOMAINS[domain]
    data = shown.rendered(split, count, partial(shown.sample, split, allow_withheld=split != "generator"))
    if not restored:
        return Album(shown, data.scenes, data.images)
    images = np.concatenate([data.images, round_trips(data.images, split, restored)])
    return Album(shown, data.scenes + data.scenes[:restored], images)
