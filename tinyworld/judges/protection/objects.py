"""Scenes whose object and companion must keep their shape under an edit, judged by the two oracles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shared.regions import overlap
from tinyworld.judges.oracles.objects import in_place, judge, load_oracles
from tinyworld.judges.protection.domain import (
    FIRST,
    SMALLEST,
    EditReading,
    Mask,
    ProtectedEdit,
    ProtectedThing,
    ProtectionDomain,
)
from tinyworld.judges.trials import proposal
from tinyworld.objects.pictures import render_pair
from tinyworld.objects.world import sample_scene, scene_factors
from tinyworld.pictures.rendered_once import Pixels

FIELDS = ("time", "weather")


def object_edits(count: int) -> Iterator[ProtectedEdit]:
    """Edits of `count` scenes with an object and a companion, time and weather in turn."""
    index = FIRST
    for number in range(count):
        while True:
            scene = sample_scene("final-test", index)
            index += 1
            proposed = None
            if scene.companion != "none":
                random = np.random.default_rng((0x9C, scene.geometry_seed))
                proposed = proposal(scene, FIELDS[number % len(FIELDS)], random)
            if proposed is None:
                continue
            source, mask = render_pair(scene)
            truth, _ = render_pair(proposed.target)
            things = [ProtectedThing(label, mask == place) for place, label in ((1, "object"), (2, "companion"))]
            yield ProtectedEdit(
                id=f"{number:04d}",
                field=proposed.field,
                to_value=str(getattr(proposed.target, proposed.field)),
                source=np.ascontiguousarray(source),
                truth=np.ascontiguousarray(truth),
                instances=tuple(thing for thing in things if thing.mask.mean() >= SMALLEST),
                edit=proposed.edit,
                facts=scene_factors(proposed.target),
            )
            break


def read_objects(requests: Sequence[ProtectedEdit], images: Sequence[Pixels]) -> list[EditReading]:
    """Whether both oracles read the edit's value, the object's class at its position, and the companion's kind."""
    placed = in_place(images, [request.instances[0].mask for request in requests])
    readings = []
    for request, values, located in zip(requests, judge(images), placed, strict=True):
        right = {name for name, value in request.facts.items() if values.get(name) == value}
        still = {"object": "label" in right and located, "companion": "companion" in right}
        readings.append(EditReading(request.field in right, tuple(still[thing.label] for thing in request.instances)))
    return readings


def touching(region: Mask, thing: ProtectedThing, neighbours: Sequence[ProtectedThing]) -> float:
    """IoU of a thing with the connected pixels of its label that touch it; no two things here share a label."""
    return overlap(thing.mask, (), region)


OBJECTS = ProtectionDomain(
    protected=("object", "companion"),
    edits=object_edits,
    read=read_objects,
    overlap=touching,
    sizes={
        "small": lambda thing: thing.share <= 0.03,
        "medium": lambda thing: thing.share <= 0.1,
        "large": lambda thing: True,
    },
    load_judges=load_oracles,
)
