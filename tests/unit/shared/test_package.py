"""Imports of the system in the caller's process."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

import pytest

from shared.package import uninterrupted
from tests.support.work_site import wait_for


def test_an_interrupt_waits_for_the_end_of_an_import() -> None:
    """After Ctrl-C in the first seconds of `contrafact.test`, every later call failed in a module imported by half."""
    imported, interrupted = [], threading.Event()
    caller = threading.get_ident()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def load() -> None:
        wait_for(lambda: sys._current_frames()[caller].f_code.co_name == "wait")
        signal.pthread_kill(caller, signal.SIGINT)
        assert interrupted.wait(60)
        imported.append("module")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            uninterrupted(load)
    finally:
        signal.signal(signal.SIGINT, before)
    assert imported == ["module"]
