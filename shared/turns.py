"""Who goes first where work waits: the source image whose work was begun first.

A worker says with each call when it began the source image that the call is for. The lines of the model services are
in that order, and of several services that share a processor, the one computes next whose line holds the oldest item.
So the images in flight are finished one after the other, rather than all at once at the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

BEGUN_HEADER = "X-Begun-At"

_begun: ContextVar[float | None] = ContextVar("begun", default=None)


@contextmanager
def begun(at: float | None) -> Iterator[None]:
    """What this thread or task does until the block ends belongs to work that was begun at this Unix time."""
    token = _begun.set(at)
    try:
        yield
    finally:
        _begun.reset(token)


def begun_at() -> float | None:
    """When the work at hand was begun, as Unix time; None where nobody said."""
    return _begun.get()


def begun_from(header: str | None) -> float:
    """The Unix time that a caller gives; now, where it gives none or one that is yet to come."""
    now = time.time()
    try:
        given = float(header) if header else now
    except ValueError:
        return now
    return given if 0 <= given <= now else now


class ComputeTurns:
    """Lets some of several batchers compute at a time: those whose oldest items belong to the oldest work."""

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
        """Wait for the turn and hold it. `oldest` is asked whenever a turn ends: items may come and go meanwhile."""
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

    def may_go_on(self, oldest: Callable[[], float]) -> bool:
        """Whether whoever has the turn may keep it: others wait for one, and their work is younger."""
        with self._changed:
            return bool(self._waiting) and oldest() < min(other() for other in self._waiting)

    def _admit(self) -> None:
        # Chosen here, once: a plain lock goes back to whoever released it last, and the others would starve.
        while self._waiting and len(self._holders) < self._at_once:
            chosen = min(self._waiting, key=lambda oldest: oldest())
            self._waiting = [waiting for waiting in self._waiting if waiting is not chosen]
            self._holders.append(chosen)
