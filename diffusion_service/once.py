"""A small cache of what several requests for one source image have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Once(Generic[Key, Value]):
    """The values used last, each computed once, also for threads that ask at the same time: they wait for the first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}
        self._computing = threading.Lock()

    def get(self, key: Key, compute: Callable[[], Value]) -> Value:
        """The value of `key`. Raises what `compute` raises; then nothing is kept."""
        with self._computing:
            value = self._values.pop(key) if key in self._values else compute()
            self._values[key] = value  # the last used comes last
            for oldest in list(self._values)[: -self._most]:
                del self._values[oldest]
            return value
