"""Limits on the pixels or bytes in use at a time: `Budget` waits for free capacity, `Spool` refuses."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.problems import NotReady

RETRY_SECONDS = 10.0
CHECK_SECONDS = 1.0


class Budget:
    """Admits work while the total size of admitted work is at most `most()`; larger work runs alone."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most, self._used = most, 0
        self._changed = threading.Condition()
        self._line: deque[object] = deque()  # otherwise small work could overtake large work for ever

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line)

    @contextmanager
    def admit(self, size: int, refuse_ended: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Wait until `size` is free and reserve it for the block. Do not nest: two threads could deadlock.

        `refuse_ended` is called while it waits, and raises to end that.
        """
        most, place = self._most(), object()
        size = min(size, most)
        with self._changed:
            self._line.append(place)
            try:
                while self._line[0] is not place or self._used + size > most:
                    self._changed.wait(CHECK_SECONDS)
                    refuse_ended()
                self._used += size
            finally:
                self._line.remove(place)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()


class Spool:
    """The bytes of uploads that a process has received and still holds, on its disk or in memory."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._lock = threading.Lock()

    def refuse_without_room(self, size: int) -> None:
        """Raise NotReady if `size` more bytes would exceed the limit."""
        if self._bytes + size > self._most:
            raise NotReady(
                f"this gateway holds {self._bytes:,} bytes of other uploads now, and at most {self._most:,} at a time; "
                "send this one later",
                retry_after=RETRY_SECONDS,
            )

    @contextmanager
    def counting(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts the bytes of one upload as they arrive; the count is released after the block.

        The function raises NotReady if the bytes exceed the limit.
        """
        total = 0

        def add(size: int) -> None:
            nonlocal total
            with self._lock:
                self.refuse_without_room(size)
                self._bytes += size
            total += size

        try:
            yield add
        finally:
            with self._lock:
                self._bytes -= total
