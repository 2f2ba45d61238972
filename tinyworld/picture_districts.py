"""Districts as pictures and words, and pictures of several of them in turn: what captioner and scorer learn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from tinyworld import captions, factors, world
from tinyworld import pictures as object_pictures
from tinyworld.captions import Description
from tinyworld.factors import FACTORS
from tinyworld.pictures import Pixels, varied
from tinyworld.roads import captions as road_captions
from tinyworld.roads import pictures as road_pictures
from tinyworld.roads import render as road_render
from tinyworld.roads import world as road_world
from tinyworld.round_trips import round_trips
from tinyworld.world import Split

S = TypeVar("S")


class Rendered(Protocol):
    """Scenes and their images (n x 128 x 128 x 3)."""

    @property
    def scenes(self) -> list[Any]: ...
    @property
    def images(self) -> Pixels: ...


@dataclass(frozen=True)
class PictureDistrict(Generic[S]):
    """What there is to see in a district, and how that is said and read back.

    `prefix` begins the names of its factors where those of several districts stand together, `heading` its figures on a
    card. `always` is the factor that a caption of the district states if it is worth anything.
    """

    name: str
    prefix: str
    heading: str
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

    def targets(self, stated: Mapping[str, str], names: Mapping[str, tuple[str, ...]]) -> list[int]:
        """Training targets, among those of `factors_of` some districts, for factors of this one."""
        return factors.targets({f"{self.prefix}{name}": value for name, value in stated.items()}, names)

    def scenes(self, first: int, count: int, split: Split = "final-test") -> list[S]:
        """Some scenes of a split, withheld combinations among them."""
        return [self.sample(split, first + index) for index in range(count)]


OBJECTS = PictureDistrict[world.Scene](
    name="objects",
    prefix="",
    heading="",
    values=FACTORS,
    always="label",
    sample=world.sample_scene,
    withheld=world.withheld,
    rendered=object_pictures.pictures,
    picture=lambda scene: object_pictures.rendered(scene)[0],
    shown=factors.scene_factors,
    mirrored=factors.mirrored,
    describe=captions.describe,
    read=captions.read,
)
ROADS = PictureDistrict[road_world.RoadScene](
    name="roads",
    prefix="road ",
    heading="roads: ",
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
DISTRICTS: dict[str, PictureDistrict[Any]] = {district.name: district for district in (OBJECTS, ROADS)}


def factors_of(districts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What pictures of the districts show and captions state; factors of the roads carry the district's name."""
    chosen = [district for district in DISTRICTS.values() if district.name in districts]
    return {f"{one.prefix}{factor}": values for one in chosen for factor, values in one.values.items()}


class Seen(NamedTuple):
    """A picture as one step of a training sees it, spoilt, and the scene that it shows."""

    district: PictureDistrict[Any]
    scene: Any
    image: Pixels  # 128 x 128 x 3
    wanted: list[int]  # targets


@dataclass(frozen=True, slots=True)
class Album:
    """Pictures of some districts in turn, as many of each."""

    parts: Sequence[tuple[PictureDistrict[Any], list[Any], Pixels]]  # district, scenes, images
    names: Mapping[str, tuple[str, ...]]  # factors of all

    def __len__(self) -> int:
        return len(self.parts) * min(len(scenes) for _, scenes, _ in self.parts)

    @property
    def districts(self) -> list[PictureDistrict[Any]]:
        """Whose pictures these are."""
        return [district for district, _, _ in self.parts]

    def seen(self, row: int, random: np.random.Generator, *, flip: bool) -> Seen:
        """Picture number `row`, flipped if asked and varied."""
        district, scenes, images = self.parts[row % len(self.parts)]
        place = row // len(self.parts)
        scene = district.mirrored(scenes[place]) if flip else scenes[place]
        image = varied(images[place], random, flip=flip)
        return Seen(district, scene, image, district.targets(district.shown(scene), self.names))


def album(districts: Sequence[str], split: Split, count: int, restored: int = 0) -> Album:
    """The first `count` pictures of a split from each district named, and `restored` of them once more.

    Those went through the autoencoder. The generator's split leaves out the withheld combinations. What is not in the
    cache yet is rendered first.
    """
    parts = []
    for name in dict.fromkeys(districts):
        district = DISTRICTS[name]
        data = district.rendered(split, count, partial(district.sample, split, allow_withheld=split != "generator"))
        scenes, images = data.scenes, data.images
        if restored:
            scenes = scenes + scenes[:restored]
            images = np.concatenate([images, round_trips(images, split, restored)])
        parts.append((district, scenes, images))
    return Album(parts, factors_of(districts))


def by_district(
    districts: Sequence[PictureDistrict[Any]], judge: Callable[[PictureDistrict[Any]], Mapping[str, object]]
) -> dict[str, object]:
    """The figures of each district under its heading."""
    return {f"{one.heading}{name}": figure for one in districts for name, figure in judge(one).items()}
