"""Scheduling by age: the source image whose work started first is computed first.

A worker sends with each call the time at which it started the source image that the call is for. The queues of the
model services are ordered by that time. Of several services that share a processor, the one whose queue holds the
oldest item computes next. So the images in flight finish one after the other, not all at once at the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

START_TIME_HEADER = "X-Begun-At"

_start_time: ContextVar[float | None] = ContextVar("start_time", default=None)


@contextmanager
def work_started(at: float | None) -> Iterator[None]:
    """Mark what this thread or task does within the block as work that started at this Unix time."""
    token = _start_time.set(at)
    try:
        yield
    finally:
        _start_time.reset(token)


def current_start_time() -> float | None:
    """When the current work started, as Unix time; None if unknown."""
    return _start_time.get()


def start_time_from(header: str | None) -> float:
    """The Unix time in a caller's header; the current time if it is missing, malformed or in the future."""
    now = time.time()
    try:
        stated = float(header) if header else now
    except ValueError:
        return now
    return stated if 0 <= stated <= now else now


class ComputeTurns:
    """Limits how many of several batchers compute at a time; those with the oldest work go first."""

    def __init__(self, at_once: int = 1) -> None:
        """`at_once`: how many may compute at the same time."""
        self._changed = threading.Condition()
        self._waiting: list[Callable[[], float]] = []
        self._holders: list[Callable[[], float]] = []
        self._at_once = at_once

    @property
    def waiting(self) -> int:
        """How many batchers wait for their turn."""
        with self._changed:
            return len(self._waiting)

    @contextmanager
    def turn(self, oldest: Callable[[], float]) -> Iterator[None]:
        """Wait for a turn and hold it for the block. `oldest` is called whenever a turn ends, since queues change."""
        with self._changed:
            self._waiting.append(oldest)
            self._admit()
            self._changed.wait_for(lambda: any(holder is oldest for holder in self._holders))
        try:
            yield
        finally:
            with self._changed:
                self._holders = [holder for holder in self._holders if holder is not oldest]
                self._admit()
                self._changed.notify_all()

    def may_continue(self, oldest: Callable[[], float]) -> bool:
        """Whether the holder of a turn may keep it: other batchers are waiting, and all their work is younger."""
        with self._changed:
            return bool(self._waiting) and oldest() < min(waiting_oldest() for waiting_oldest in self._waiting)

    def _admit(self) -> None:
        # A plain lock tends to return to its last holder, which would starve the others; so the oldest is chosen here.
        while self._waiting and len(self._holders) < self._at_once:
            next_holder = min(self._waiting, key=lambda oldest: oldest())
            self._waiting = [waiting for waiting in self._waiting if waiting is not next_holder]
            self._holders.append(next_holder)
