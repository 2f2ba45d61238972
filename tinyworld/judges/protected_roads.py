"""Driving scenes whose road, vehicles and people must keep their shape under an edit, and how that is judged.

A domain of `tinyworld.judges.protected_scenes`. Whether the scene shows the edit is said by the two readers, whether a
thing is still there by the two oracle segmenters; all four are made on demand (docs/measurements/roads.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from math import ceil
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSemanticSegmentation, PreTrainedModel

from gateway.methods.counterfactual import FACTORS, Change, Edit
from shared.regions import box_of, overlap
from shared.seeds import derive_seed
from tinyworld.judges.protected_scenes import (
    FIRST,
    HALF,
    SMALLEST,
    Asked,
    District,
    Instance,
    Mask,
    Seen,
    Size,
    overlaps,
)
from tinyworld.judges.road_readers import load_readers, looks, made
from tinyworld.judges.road_segmenters import HEIGHTS
from tinyworld.judges.trials import rephrased
from tinyworld.objects.captions import Description
from tinyworld.objects.drawing.canvas import Image
from tinyworld.objects.phrases import slot_of
from tinyworld.roads.captions import describe
from tinyworld.roads.phrases import SLOTS
from tinyworld.roads.render import RoadRendering, render
from tinyworld.roads.segmenters import class_masks
from tinyworld.roads.world import CLASSES, EDIT_FACTOR, LOOKS, RoadScene, sample_scene, scene_factors

FIELDS = ("time", "weather", "surface", "season")
ORACLES = ("oracle-a", "oracle-b")
_VEHICLE_HEIGHTS = ((0, 12), (12, 24), (24, 128))  # pixels of 128: at least, below


def roads_asked(count: int) -> Iterator[Asked]:
    """Edits of `count` scenes: time, weather, the road's surface and the vegetation's season in turn."""
    for number in range(count):
        yield asked_of(f"{number:04d}", sample_scene("final-test", FIRST + number), FIELDS[number % len(FIELDS)])


def asked_of(name: str, scene: RoadScene, field: str) -> Asked:
    """The edit of one look of a scene, with the renderer's truth."""
    edit, wanted = edit_of(scene, field)
    drawn = render(scene)
    return Asked(
        id=name,
        field=field,
        to_value=str(getattr(wanted, field)),
        source=np.ascontiguousarray(drawn.image),
        truth=np.ascontiguousarray(render(wanted).image),
        instances=instances(drawn),
        edit=edit,
        facts=scene_factors(wanted),
    )


def edit_of(scene: RoadScene, field: str) -> tuple[Edit, RoadScene]:
    """A change of one look as a faultless captioner and language model would write it, and the scene that it wants."""
    random = np.random.default_rng((0x9C, scene.geometry_seed))
    others = [value for value in LOOKS[field] if value != getattr(scene, field)]
    value = others[int(random.integers(len(others)))]
    said = _said(scene, field)
    old = next(mention.phrase for mention in said.mentions if mention.field == field)
    phrases = SLOTS[slot_of(old, field=field, slots=SLOTS)].wordings[value].usual
    new = phrases[int(random.integers(len(phrases)))]
    factor = next(factor for factor in FACTORS if factor == EDIT_FACTOR[field])
    change = Change(factor, old, new, said.stated[field], value)
    return Edit((change,), said.text, rephrased(said.text, old, new)), scene.changed(**{field: value})


def _said(scene: RoadScene, field: str) -> Description:
    """The first caption of the scene that states the field."""
    seeds = (derive_seed("trial", scene.geometry_seed, number) for number in range(1000))
    return next(said for seed in seeds if field in (said := describe(scene, seed)).stated)


def instances(drawn: RoadRendering) -> tuple[Instance, ...]:
    """The road, the traffic light, and every vehicle and pedestrian by itself, as far as they show; no specks."""
    found = [Instance(label, drawn.classes == CLASSES.index(label)) for label in ("road", "traffic light")]
    found += [Instance(label, drawn.instances == number) for number, label in drawn.instance_classes.items()]
    return tuple(one for one in found if one.mask.mean() >= SMALLEST)


def near(there: Mask, thing: Instance, others: Sequence[Instance]) -> float:
    """IoU of a thing with the pixels of its class that touch it, in its box grown by a quarter; others' are theirs.

    So what touches it elsewhere does not count: of two people side by side each is judged by itself.
    """
    left, top, right, bottom = box_of(thing.mask)
    across, down = ceil((right - left) / 4), ceil((bottom - top) / 4)
    window = np.zeros_like(thing.mask)
    window[max(0, top - down) : bottom + down, max(0, left - across) : right + across] = True
    return overlap(thing.mask, [other.mask for other in others], there & window)


def roads_seen(asked: Sequence[Asked], images: Sequence[Image]) -> list[Seen]:
    """Both readers read the edit's value; each thing is where it was in the eyes of both oracles.

    Raises SystemExit with the command that makes it where one of the four is missing.
    """
    maps = [class_masks(model, images) for model in load_oracles()]
    return [
        Seen(read[one.field] == one.to_value, recognised(one.instances, both))
        for one, read, *both in zip(asked, looks(images), *maps, strict=True)
    ]


def recognised(things: Sequence[Instance], maps: Sequence[Image]) -> tuple[bool, ...]:
    """Of each thing whether all class masks (height x width, indices into `CLASSES`) have it where it was."""
    found = [overlaps(classes, CLASSES, things, near) for classes in maps]
    return tuple(min(ious) >= HALF for ious in zip(*found, strict=True))


def load_oracles() -> list[PreTrainedModel]:
    """Both oracle segmenters, in float32; raises SystemExit where one is missing."""
    return [_loaded(made(name, "road_segmenter")) for name in ORACLES]


@cache
def _loaded(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForSemanticSegmentation.from_pretrained(folder, dtype=torch.float32)
    return model


def _load_judges() -> None:
    load_readers()
    load_oracles()


def _tall(label: str, least: int, below: int) -> tuple[str, Size]:
    def holds(thing: Instance) -> bool:
        return thing.label == label and least <= thing.height < below

    return f"{label}s, {least}-{below - 1} px", holds


ROADS = District(
    protected=("vehicle", "pedestrian", "traffic light"),  # the road needs none
    asked=roads_asked,
    seen=roads_seen,
    overlap=near,
    sizes=dict(
        [_tall("vehicle", *some) for some in _VEHICLE_HEIGHTS] + [_tall("pedestrian", *some) for some in HEIGHTS]
    ),
    load_judges=_load_judges,
    masked=True,
)
