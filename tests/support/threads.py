"""Threads of a test, which end with it even when an assertion fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HANG_SECONDS = 600.0
FAILED_SECONDS = 10.0


@contextmanager
def background(*targets: Callable[[], object], release: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Run each target in a thread while the block runs, and join the threads at its end.

    `release` lets the targets end, for example by setting an event; it is also called when the block fails. The
    threads are daemons, so that one that hangs does not keep the process alive.
    """
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield
    except BaseException:
        release()
        _join(threads, FAILED_SECONDS)
        raise
    release()
    _join(threads, HANG_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a thread did not end"


def run_together(*targets: Callable[[], object]) -> None:
    """Run the targets at the same time, each in a thread, until all have ended."""
    with background(*targets):
        pass


def _join(threads: list[threading.Thread], seconds: float) -> None:
    for thread in threads:
        thread.join(seconds)
