"""Edits under which things must keep their shape, by domain, and the judgement of the results.

A domain provides edits of looks with the renderer's truth, and judges images: which things are preserved, and whether
the scene shows the edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.methods.counterfactual import Edit
from research.pictures.rendered_once import Pixels

Mask = NDArray[np.bool_]
FIRST = 80_000  # the first final-test scene; `research.measure.counterfactuals` uses scenes below it
SMALLEST = 0.0008  # share of the image; smaller instances are specks
HALF = 0.5  # the least IoU of a kept thing


@dataclass(frozen=True, slots=True)
class ProtectedThing:
    """A thing of a scene: its segmenter label, and the mask of its visible pixels (height × width)."""

    label: str
    mask: Mask

    @property
    def share(self) -> float:
        """Its share of the image's area."""
        return float(self.mask.mean())

    @property
    def height(self) -> int:
        """Its visible height in pixels."""
        rows = np.flatnonzero(self.mask.any(axis=1))
        return int(rows[-1] - rows[0]) + 1


# Whether a thing has a size; and the IoU of a thing with the pixels of its label in an image, less those of the other
# things of that label.
Size = Callable[[ProtectedThing], bool]
Overlap = Callable[[Mask, ProtectedThing, Sequence[ProtectedThing]], float]


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
    instances: tuple[ProtectedThing, ...]
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

    def size(self, thing: ProtectedThing) -> str:
        """The name of its size; empty for none."""
        return next((name for name, holds in self.sizes.items() if holds(thing)), "")


def overlaps(
    label_map: NDArray[np.integer], labels: Sequence[str], things: Sequence[ProtectedThing], rule: Overlap
) -> list[float]:
    """For each thing the IoU with the pixels of its label in a label map (height × width, indices into `labels`)."""
    return [
        rule(
            label_map == labels.index(thing.label),
            thing,
            [neighbour for neighbour in things if neighbour is not thing and neighbour.label == thing.label],
        )
        for thing in things
    ]
