"""Split a sequence or an array into chunks of bounded size, for messages, SQL statements and batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self, TypeVar


class Sliceable(Protocol):
    """A type with a length whose slices have the same type: lists, tuples, arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Self: ...


Items = TypeVar("Items", bound=Sliceable)


def chunks(items: Items, size: int) -> Iterator[Items]:
    """Yield the items in order; only the last chunk may have fewer than `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))
