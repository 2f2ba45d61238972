"""Imports of the system in the caller's process."""

from __future__ import annotations

import os
import signal
import time

import pytest

from shared.package import uninterrupted


def test_an_interrupt_waits_for_the_end_of_an_import() -> None:
    """After Ctrl-C in the first seconds of `contrafact.test`, every later call failed in a module imported by half."""
    imported = []

    def load() -> None:
        time.sleep(0.2)  # the caller waits by now
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        imported.append("module")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background jobs
    try:
        with pytest.raises(KeyboardInterrupt):
            uninterrupted(load)
    finally:
        signal.signal(signal.SIGINT, before)
    assert imported == ["module"]
