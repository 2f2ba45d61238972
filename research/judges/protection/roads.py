"""Driving scenes whose road, vehicles and pedestrians must keep their shape under an edit, and their judges.

The two oracles judge whether the scene shows the edit, the two oracle segmenters whether a thing is preserved; all four
are trained on demand (research/docs/roads.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np

from gateway.methods.counterfactual import FACTORS, Change, Edit
from research.judges.oracles.roads import judge, load_oracles
from research.judges.protection.domain import (
    FIRST,
    HALF,
    SMALLEST,
    EditReading,
    Mask,
    ProtectedEdit,
    ProtectedThing,
    ProtectionDomain,
    Size,
    overlaps,
)
from research.judges.segmentation import HEIGHTS, load_segmenters
from research.networks.segmenters import class_masks
from shared.media.regions import box_of, overlap
from shared.seeds import derive_seed
from tinyworld.domain.descriptions import Description
from tinyworld.domain.wording import slot_of
from tinyworld.drawing.canvas import Image
from tinyworld.objects.proposals import rephrase
from tinyworld.roads.captions import describe
from tinyworld.roads.phrases import SLOTS
from tinyworld.roads.render import Rendering, render
from tinyworld.roads.world import CLASSES, EDIT_FACTOR, LOOKS, Scene, sample_scene, scene_factors

FIELDS = ("time", "weather", "surface", "season")
_VEHICLE_HEIGHTS = ((0, 12), (12, 24), (24, 128))  # pixels of 128: at least, below


def road_edits(count: int) -> Iterator[ProtectedEdit]:
    """Edits of `count` scenes: time, weather, the road's surface and the vegetation's season in turn."""
    for number in range(count):
        yield protected_edit(f"{number:04d}", sample_scene("final-test", FIRST + number), FIELDS[number % len(FIELDS)])


def protected_edit(name: str, scene: Scene, field: str) -> ProtectedEdit:
    """The edit of one look of a scene, with the renderer's truth."""
    edit, changed_scene = edit_of(scene, field)
    rendering = render(scene)
    return ProtectedEdit(
        id=name,
        field=field,
        to_value=str(getattr(changed_scene, field)),
        source=np.ascontiguousarray(rendering.image),
        truth=np.ascontiguousarray(render(changed_scene).image),
        instances=instances(rendering),
        edit=edit,
        facts=scene_factors(changed_scene),
    )


def edit_of(scene: Scene, field: str) -> tuple[Edit, Scene]:
    """A change of one look as a faultless captioner and language model would write it, and the resulting scene."""
    random = np.random.default_rng((0x9C, scene.geometry_seed))
    other_values = [value for value in LOOKS[field] if value != getattr(scene, field)]
    value = other_values[int(random.integers(len(other_values)))]
    description = _caption_stating(scene, field)
    old = next(mention.phrase for mention in description.mentions if mention.field == field)
    phrases = SLOTS[slot_of(old, SLOTS, field=field)].wordings[value].usual
    new = phrases[int(random.integers(len(phrases)))]
    factor = next(factor for factor in FACTORS if factor == EDIT_FACTOR[field])
    change = Change(factor, old, new, description.stated[field], value)
    return Edit((change,), description.text, rephrase(description.text, old, new)), scene.changed(**{field: value})


def _caption_stating(scene: Scene, field: str) -> Description:
    """The first caption of the scene that states the field."""
    seeds = (derive_seed("trial", scene.geometry_seed, number) for number in range(1000))
    return next(description for seed in seeds if field in (description := describe(scene, seed)).stated)


def instances(drawn: Rendering) -> tuple[ProtectedThing, ...]:
    """The visible road and traffic light, and each visible vehicle and pedestrian separately; specks are left out."""
    things = [ProtectedThing(label, drawn.classes == CLASSES.index(label)) for label in ("road", "traffic light")]
    things += [ProtectedThing(label, drawn.instances == number) for number, label in drawn.instance_classes.items()]
    return tuple(thing for thing in things if thing.mask.mean() >= SMALLEST)


def near(region: Mask, thing: ProtectedThing, neighbours: Sequence[ProtectedThing]) -> float:
    """IoU of a thing with the pixels of its class that touch it, inside its box enlarged by a quarter.

    Pixels of other things of the class do not count, so two people side by side are judged separately.
    """
    left, top, right, bottom = box_of(thing.mask)
    across, down = ceil((right - left) / 4), ceil((bottom - top) / 4)
    window = np.zeros_like(thing.mask)
    window[max(0, top - down) : bottom + down, max(0, left - across) : right + across] = True
    return overlap(thing.mask, [neighbour.mask for neighbour in neighbours], region & window)


def read_roads(requests: Sequence[ProtectedEdit], images: Sequence[Image]) -> list[EditReading]:
    """Whether both oracles read the edit's value, and both segmenters detect each thing where it was.

    Raises SystemExit with the training command if one of the four models is missing.
    """
    maps = [class_masks(model, images) for model in load_segmenters()]
    return [
        EditReading(read[request.field] == request.to_value, recognise(request.instances, label_maps))
        for request, read, *label_maps in zip(requests, judge(images), *maps, strict=True)
    ]


def recognise(things: Sequence[ProtectedThing], maps: Sequence[Image]) -> tuple[bool, ...]:
    """For each thing, whether it kept its place in all class masks (height x width, indices into `CLASSES`)."""
    ious_of_maps = [overlaps(classes, CLASSES, things, near) for classes in maps]
    return tuple(min(ious) >= HALF for ious in zip(*ious_of_maps, strict=True))


def _load_judges() -> None:
    load_oracles()
    load_segmenters()


def _tall(label: str, least: int, below: int) -> tuple[str, Size]:
    def holds(thing: ProtectedThing) -> bool:
        return thing.label == label and least <= thing.height < below

    return f"{label}s, {least}-{below - 1} px", holds


ROADS = ProtectionDomain(
    protected=("vehicle", "pedestrian", "traffic light"),  # the road needs none
    edits=road_edits,
    read=read_roads,
    overlap=near,
    sizes=dict(
        [_tall("vehicle", *heights) for heights in _VEHICLE_HEIGHTS]
        + [_tall("pedestrian", *heights) for heights in HEIGHTS]
    ),
    load_judges=_load_judges,
    masked=True,
)
