"""A sequence or an array in parts of at most a size: for messages, statements and batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self, TypeVar


class Sliceable(Protocol):
    """What has a length and slices of its own type: lists, tuples, arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Self: ...


Items = TypeVar("Items", bound=Sliceable)


def chunks(items: Items, size: int) -> Iterator[Items]:
    """The items in their order; only the last part may hold fewer than `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))
