"""The scenes on which repairs are judged, in both domains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from tinyworld.domain.scenes import Shown, Split, scenes_without

Scene = TypeVar("Scene")


class PlantedValue(Protocol):
    """The part of a plant that this module needs: the class whose labels are wrong where `field` has `value`."""

    @property
    def label(self) -> str: ...
    @property
    def field(self) -> str: ...
    @property
    def value(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Truth(Generic[Scene]):
    """`count` scenes of a distribution from number `first` on, none of which shows a value of `lacking`.

    `of_class`: scenes of one class alone, from scenes of the distribution.
    """

    distribution: Callable[[int, Split], Scene]
    of_class: Callable[[Iterable[Scene], str], Iterator[Scene]]
    first: int
    count: int
    lacking: Collection[Shown] = ()

    def as_they_are(self) -> list[Scene]:
        """Scenes of the distribution, of all classes."""
        return list(islice(scenes_without(self.lacking, self.distribution, self.first), self.count))

    def without(self, plant: PlantedValue) -> list[Scene]:
        """Scenes of this distribution of the planted class alone, without the planted value."""
        lacking = (*self.lacking, (plant.field, plant.value))
        scenes = self.of_class(scenes_without(lacking, self.distribution, self.first), plant.label)
        return list(islice(scenes, self.count))
