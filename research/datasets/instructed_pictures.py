"""Training data of the editor that follows instructions, in both domains: a source, an instruction, a target.

The target is the renderer counterfactual: the same scene, drawn with one factor changed. Its geometry is the source's,
so label and masks stay true by construction (a painting of an object bends its outline a little). Neither source nor
target is a withheld combination. Every source has `EDITS` targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.datasets.captioned_pictures import PICTURE_DOMAINS
from research.domain.instructions import InstructionWording, no_change
from research.objects.instructions import INSTRUCTIONS as OBJECTS
from research.pictures.rendered_once import Pixels
from research.roads.instructions import INSTRUCTIONS as ROADS
from tinyworld.domain.descriptions import Withheld
from tinyworld.domain.names import Domain
from tinyworld.domain.scenes import Split

EDITS = 3  # targets of a source
OWN_VALUE = 0.5  # of the sham instructions: name the value that is there already, the others say that nothing changes
WORDINGS: dict[str, InstructionWording] = {"objects": OBJECTS, "roads": ROADS}


@dataclass(frozen=True, slots=True)
class Pair:
    """A scene, and the value that one of its fields gets."""

    domain: Domain
    source: Any
    field: str
    value: str

    @property
    def target(self) -> Any:
        """The scene with the field changed."""
        return self.source.changed(**{self.field: self.value})

    def instruction(self, seed: int, *, withheld: Withheld = "nothing") -> str:
        """An instruction that makes the target of the source."""
        return WORDINGS[self.domain].instruction(self.source, self.field, self.value, seed, withheld=withheld)

    def sham(self, seed: int, *, withheld: Withheld = "nothing") -> str:
        """An instruction under which the source stays as it is."""
        if np.random.default_rng((0x54A3, seed)).random() < OWN_VALUE:
            value = str(getattr(self.source, self.field))
            return WORDINGS[self.domain].instruction(self.source, self.field, value, seed, withheld=withheld)
        return no_change(seed, withheld=withheld)


def pair(domain: Domain, number: int, split: Split = "generator") -> Pair:
    """Pair number `number` of a split: of source `number // EDITS`. The generator's has no withheld combination."""
    drawn = PICTURE_DOMAINS[domain]
    source = drawn.sample(split, number // EDITS, allow_withheld=split != "generator")
    options = _options(domain, source, allow_withheld=split != "generator")
    random = np.random.default_rng((0x1257, source.geometry_seed, number % EDITS))
    field = list(options)[int(random.integers(len(options)))]
    return Pair(domain, source, field, options[field][int(random.integers(len(options[field])))])


def _options(domain: Domain, source: Any, *, allow_withheld: bool) -> dict[str, list[str]]:
    """The values that each field of a scene may get: another one, of something that is there and stays there."""
    drawn, options = PICTURE_DOMAINS[domain], dict[str, list[str]]()
    shown = drawn.shown(source)
    for field in WORDINGS[domain].fields():
        if shown.get(field, "none") == "none":
            continue
        others = [value for value in drawn.values[field] if value not in ("none", shown[field])]
        allowed = [v for v in others if allow_withheld or not drawn.withheld(source.changed(**{field: v}))]
        if allowed:
            options[field] = allowed
    return options


@dataclass(frozen=True, slots=True)
class InstructedPictures:
    """Rendered pairs: `image` number 0 to `sources` - 1 is a source, number `sources` + p the target of pair p."""

    domain: Domain
    sources: int
    image: Callable[[int], Pixels]  # 128 x 128 x 3

    @property
    def count(self) -> int:
        """Images, sources and targets together."""
        return self.sources * (1 + EDITS)

    @property
    def pairs(self) -> int:
        """Pairs, numbered from 0."""
        return self.sources * EDITS

    def source_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The images that are the sources of some pairs."""
        return numbers // EDITS

    def target_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The images that are the targets of some pairs."""
        return self.sources + numbers


def instructed_pictures(domain: Domain, sources: int) -> InstructedPictures:
    """The first pairs of the generator's split, from the cache under `runs/`; missing images are rendered first."""
    drawn = PICTURE_DOMAINS[domain]
    before = drawn.rendered("generator", sources, partial(drawn.sample, "generator", allow_withheld=False)).images
    after = drawn.rendered("instructed", sources * EDITS, lambda number: pair(domain, number).target).images
    return InstructedPictures(
        domain, sources, lambda number: before[number] if number < sources else after[number - sources]
    )
