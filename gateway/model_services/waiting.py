"""How long calls retry a service that is busy, starting or unreachable: each call on its own, or several together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Waiting:
    """Seconds that calls may still spend on attempts that fail and on the pauses between them."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def spend(self, seconds: float) -> bool:
        """Whether this many seconds are left; they are spent either way."""
        self._left -= seconds
        return self._left >= 0


_shared: ContextVar[Waiting | None] = ContextVar("waiting", default=None)


@contextmanager
def shared_waiting(seconds: float) -> Iterator[None]:
    """Let the calls that this thread makes within the block wait at most `seconds` in all.

    Once they are spent, a call to an absent service is tried once and fails.
    """
    token = _shared.set(Waiting(seconds))
    try:
        yield
    finally:
        _shared.reset(token)


def current_waiting(seconds: float) -> Waiting:
    """That of the block that this thread is in; outside `shared_waiting`, `seconds` for one call."""
    return _shared.get() or Waiting(seconds)
