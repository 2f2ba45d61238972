"""Scenes whose things must keep their shape under an edit, by domain, and the judgement of the results.

A domain provides edits of looks with the renderer's truth, and judges images: which instances are preserved, and
whether the scene shows the edit. Driving scenes: `tinyworld/judges/protected_roads.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.methods.counterfactual import Edit
from shared.regions import overlap
from tinyworld.judges.oracles import in_place, judge, load_oracles
from tinyworld.judges.trials import proposal
from tinyworld.objects.factors import scene_factors
from tinyworld.objects.pictures import Pixels, rendered
from tinyworld.objects.world import sample_scene

Mask = NDArray[np.bool_]
FIRST = 80_000  # final-test scenes from here on; `tinyworld.measure.counterfactuals` uses those before
FIELDS = ("time", "weather")
SMALLEST = 0.0008  # share of the image below which an instance is a speck
HALF = 0.5  # of the IoU from which on a thing is kept


@dataclass(frozen=True, slots=True)
class Instance:
    """A thing of a scene: the segmenter's label of it, and where it is seen (height × width)."""

    label: str
    mask: Mask

    @property
    def share(self) -> float:
        """Of the image's area."""
        return float(self.mask.mean())

    @property
    def height(self) -> int:
        """From the topmost to the lowest pixel that shows."""
        rows = np.flatnonzero(self.mask.any(axis=1))
        return int(rows[-1] - rows[0]) + 1


# Whether a thing is of a size; and the IoU of a thing with the pixels of its label in an image, of which the other
# things of that label have theirs.
Size = Callable[[Instance], bool]
Overlap = Callable[[Mask, Instance, Sequence[Instance]], float]


@dataclass(frozen=True, slots=True)
class ProtectedEdit:
    """An edit of a rendered scene: the source, the renderer's truth, and the things that must keep their shape.

    `field` becomes `to_value`; `facts` are the expected oracle readings of the truth, by factor.
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
class EditReading:
    """The oracles' readings of an image: whether it shows the edit, and by instance whether the thing is preserved."""

    shown: bool
    recognised: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class ProtectionDomain:
    """`protected` are labels of the profile's segmenter; `edits` yields so many edits; `read` judges images of them.

    `sizes` are the size classes of the report, by name: a thing has the first one that holds, or none. `load_judges`
    raises SystemExit if a model that `read` needs is missing. `masked`: the ground truth is a mask, so that edits must
    preserve the background's shapes, too.
    """

    protected: tuple[str, ...]
    edits: Callable[[int], Iterator[ProtectedEdit]]
    read: Callable[[Sequence[ProtectedEdit], Sequence[Pixels]], list[EditReading]]
    overlap: Overlap
    sizes: Mapping[str, Size]
    load_judges: Callable[[], object]
    masked: bool = False

    def size(self, thing: Instance) -> str:
        """The name of its size; empty for none."""
        return next((name for name, holds in self.sizes.items() if holds(thing)), "")


def overlaps(
    label_map: NDArray[np.integer], labels: Sequence[str], things: Sequence[Instance], rule: Overlap
) -> list[float]:
    """For each thing the IoU with the pixels of its label in a label map (height × width, indices into `labels`)."""
    return [
        rule(
            label_map == labels.index(thing.label),
            thing,
            [other for other in things if other is not thing and other.label == thing.label],
        )
        for thing in things
    ]


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
            source, mask = rendered(scene)
            truth, _ = rendered(proposed.wanted)
            things = [Instance(label, mask == place) for place, label in ((1, "object"), (2, "companion"))]
            yield ProtectedEdit(
                id=f"{number:04d}",
                field=proposed.field,
                to_value=str(getattr(proposed.wanted, proposed.field)),
                source=np.ascontiguousarray(source),
                truth=np.ascontiguousarray(truth),
                instances=tuple(thing for thing in things if thing.mask.mean() >= SMALLEST),
                edit=proposed.edit,
                facts=scene_factors(proposed.wanted),
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


def touching(there: Mask, thing: Instance, others: Sequence[Instance]) -> float:
    """IoU of a thing with the connected pixels of its label that touch it; no two things here share a label."""
    return overlap(thing.mask, (), there)


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
