"""What pages computed last, kept in memory: paging through a large job does not compute the same again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """The values that were used last, at most `most`. A key must change with everything that its value depends on."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def cached(self, key: Hashable) -> Value | None:
        """The value of the key if it is in memory."""
        with self._lock:
            return self._values.get(key)

    def find(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of the key. Threads that ask at the same time may each make it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value
