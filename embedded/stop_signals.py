"""Ctrl-C and SIGTERM of an embedded system: the first signal shuts it down, the second ends the process at once."""

from __future__ import annotations

import os
import signal
from types import FrameType


class StopSignal:
    """Waits for the first SIGINT or SIGTERM. Create it in the main thread.

    After the second signal, the process exits with 128 + the signal's number. A killed process loses nothing: the
    system resumes after a restart on the same directory. The interpreter itself writes the signal into a pipe. Python's
    handler could not wake `wait`: it runs in the main thread, which would sleep on if the signal arrived just before.
    """

    def __init__(self) -> None:
        self._arrivals, arrived = os.pipe()
        os.set_blocking(arrived, False)
        signal.set_wakeup_fd(arrived, warn_on_full_buffer=False)
        self._stopping = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def wait(self) -> None:
        """Return once the first signal has arrived."""
        while not self._stopping:  # another signal may have a handler too
            os.read(self._arrivals, 1)

    def _stop(self, number: int, _: FrameType | None) -> None:
        if self._stopping:
            os._exit(128 + number)
        self._stopping = True
        os.write(2, b"Stopping. A second Ctrl-C ends the process at once.\n")  # `print` is not safe in a handler
