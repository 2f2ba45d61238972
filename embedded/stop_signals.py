"""Ctrl-C and SIGTERM of an embedded system: the first signal shuts it down, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


def stop_event() -> threading.Event:
    """An event that the first SIGINT or SIGTERM sets. Call it in the main thread.

    After the second signal, the process exits with 128 + the signal's number. A killed process loses nothing: the
    system resumes after a restart on the same directory.
    """
    stopping = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()
        os.write(2, b"Stopping. A second Ctrl-C ends the process at once.\n")  # `print` is not safe in a handler

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return stopping
