"""Scenes whose things must keep their shape under an edit, by district, and how what became of them is judged.

A district gives edits of weather and time with the renderer's truth, and judges images: which instances are still
there, and whether the scene shows the edit. `DISTRICTS` names those that can be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.methods.counterfactual import Edit
from tinyworld.factors import scene_factors
from tinyworld.oracles import in_place, judge
from tinyworld.pictures import Pixels, rendered
from tinyworld.trials import proposal
from tinyworld.world import sample_scene

Mask = NDArray[np.bool_]
FIRST = 80_000  # final-test scenes from here on; `measure_counterfactuals` uses those before
FIELDS = ("time", "weather")
SMALLEST = 0.0008  # share of the image below which an instance is a speck


@dataclass(frozen=True, slots=True)
class Instance:
    """A thing of a scene: the segmenter's label of it, and where it is seen (height × width)."""

    label: str
    mask: Mask


@dataclass(frozen=True, slots=True)
class Asked:
    """An edit of a drawn scene: the source, the renderer's truth, and the things that must stay.

    `field` becomes `to_value`; `facts` are what an oracle should read in the truth, by factor.
    """

    id: str
    field: str
    to_value: str
    source: Pixels
    truth: Pixels
    instances: tuple[Instance, ...]
    edit: Edit
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the oracles say of an image: whether it shows the edit, and by instance whether the thing is what it was."""

    shown: bool
    recognised: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class District:
    """`protected` are labels of the profile's segmenter; `asked` numbers edits from 0; `seen` judges images of them."""

    protected: tuple[str, ...]
    asked: Callable[[int], Iterator[Asked]]
    seen: Callable[[Sequence[Asked], Sequence[Pixels]], list[Seen]]


def objects_asked(count: int) -> Iterator[Asked]:
    """Edits of `count` scenes with an object and a companion, time and weather in turn."""
    index = FIRST
    for number in range(count):
        while True:
            scene = sample_scene("final-test", index)
            index += 1
            found = None
            if scene.companion != "none":
                random = np.random.default_rng((0x9C, scene.geometry_seed))
                found = proposal(scene, FIELDS[number % len(FIELDS)], random)
            if found is None:
                continue
            source, mask = rendered(scene)
            truth, _ = rendered(found.wanted)
            things = [Instance(label, mask == place) for place, label in ((1, "object"), (2, "companion"))]
            yield Asked(
                id=f"{number:04d}",
                field=found.field,
                to_value=str(getattr(found.wanted, found.field)),
                source=np.ascontiguousarray(source),
                truth=np.ascontiguousarray(truth),
                instances=tuple(one for one in things if one.mask.mean() >= SMALLEST),
                edit=found.edit,
                facts=scene_factors(found.wanted),
            )
            break


def objects_seen(asked: Sequence[Asked], images: Sequence[Pixels]) -> list[Seen]:
    """Both oracles read the edit's value; of the object, its class, in its place; of the companion, its kind."""
    placed = in_place(images, [one.instances[0].mask for one in asked])
    found = []
    for one, values, there in zip(asked, judge(images), placed, strict=True):
        right = {name for name, value in one.facts.items() if values.get(name) == value}
        still = {"object": "label" in right and there, "companion": "companion" in right}
        found.append(Seen(one.field in right, tuple(still[thing.label] for thing in one.instances)))
    return found


DISTRICTS: Mapping[str, District] = {
    "objects": District(("object", "companion"), objects_asked, objects_seen),
}
