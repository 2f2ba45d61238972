"""End the calls of a step from another thread, because its job was cancelled or deleted, or the worker stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Cancelled(Exception):
    """The call was ended before its reply."""


class Cancellation:
    """The calls in flight of one step. Once cancelled, every call of the step ends at once. Thread-safe."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._cancelled = threading.Event()
        self._calls: set[Future[Any]] = set()

    def cancel(self) -> None:
        """End the calls in flight, and later ones as soon as they begin."""
        with self._changing:
            self._cancelled.set()
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def pause(self, seconds: float) -> None:
        """Wait before a retry. Raises Cancelled."""
        if self._cancelled.wait(seconds):
            raise Cancelled

    def result(self, call: Future[Answer]) -> Answer:
        """The result of a call. Raises Cancelled, and what the call raises."""
        with self._changing:
            self._calls.add(call)
        if self._cancelled.is_set():
            call.cancel()
        try:
            return call.result()
        except CancelledError as error:
            raise Cancelled from error
        finally:
            with self._changing:
                self._calls.discard(call)


_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


@contextmanager
def cancellable(cancellation: Cancellation) -> Iterator[None]:
    """Let `cancellation` end the calls that this thread makes within the block."""
    token = _current.set(cancellation)
    try:
        yield
    finally:
        _current.reset(token)


def current_cancellation() -> Cancellation | None:
    """The cancellation of the block that this thread is in; None outside `cancellable`."""
    return _current.get()


def refuse_cancelled() -> None:
    """Raises Cancelled if the block that this thread is in is cancelled."""
    if (cancellation := _current.get()) is not None:
        cancellation.pause(0)
