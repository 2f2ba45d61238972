"""What scenes of both domains share: the looks that both have, splits of geometry seeds, and withheld combinations."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from typing import Literal, TypeVar

import numpy as np

from tinyworld.domain.names import DOMAINS, Domain

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
COMPANION_COLOURS = ("red", "yellow", "green", "blue", "white")
WEATHERS = ("clear", "rain", "snow", "fog")
TIMES = ("day", "sunset", "night")
STYLES = ("photo", "painting", "sketch")

Split = Literal["generator", "scorer", "oracle-a", "oracle-b", "under-test", "calibration", "final-test", "demo"]
SPLITS: tuple[Split, ...] = (
    "generator", "scorer", "oracle-a", "oracle-b", "under-test", "calibration", "final-test", "demo",
)  # fmt: skip
_SPLIT_SPAN = 10_000_000  # scenes of a split

UNKNOWN = -100
"""The target of a factor that the image does not show or the caption leaves out: it costs nothing."""
Scene = TypeVar("Scene")
Shown = tuple[str, str]
"""A field of a scene and its value, such as ("time", "night")."""


def geometry_seed(domain: Domain, split: Split, index: int) -> int:
    """The seed of scene number `index` (0 to 9,999,999) of a split; no two splits, nor domains, share one."""
    if not 0 <= index < _SPLIT_SPAN:
        raise ValueError(f"index {index} is outside 0 … {_SPLIT_SPAN - 1}")
    return (len(SPLITS) * DOMAINS.index(domain) + SPLITS.index(split)) * _SPLIT_SPAN + index


def check_values(scene: object, values: Mapping[str, Collection[str | int]]) -> None:
    """Raise ValueError if a field of the scene has a value that is not in its closed list."""
    for name, allowed in values.items():
        if getattr(scene, name) not in allowed:
            raise ValueError(f"{name} is {getattr(scene, name)!r}; it must be one of {allowed}")


def targets(factors: Mapping[str, str], names: Mapping[str, tuple[str, ...]]) -> list[int]:
    """Indices into the values of the named factors, in their order; `UNKNOWN` where a factor is absent."""
    return [values.index(factors[name]) if name in factors else UNKNOWN for name, values in names.items()]


def withheld_combination(*values: str) -> bool:
    """Whether a combination of values is one of the 10 % never shown to generators.

    Decided by a hash of the combination, so that it is the same everywhere and needs no table.
    """
    return hashlib.sha256("/".join(values).encode()).digest()[0] < 26  # 26 / 256 = 10.2 %


def draw_values(shares: Mapping[str, Mapping[str, float]], seed: int) -> dict[str, str]:
    """A value of each field, drawn by its shares; the same for the same geometry seed."""
    random = np.random.default_rng((0x0D, seed))
    return {field: str(random.choice(list(values), p=list(values.values()))) for field, values in shares.items()}


def shows(scene: object, any_of: Collection[Shown]) -> bool:
    """Whether the scene has one of these values."""
    return any(getattr(scene, field) == value for field, value in any_of)


def scenes_without(lacking: Collection[Shown], draw: Callable[[int, Split], Scene], first: int) -> Iterator[Scene]:
    """Scenes of the final test from number `first` on, without those that show a value of `lacking`. Endless."""
    scenes = (draw(number, "final-test") for number in count(first))
    return (scene for scene in scenes if not shows(scene, lacking))
