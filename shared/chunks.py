"""A sequence in parts of at most a size: for messages, statements and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in their order; only the last part may hold fewer than `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))
