"""Whether the model of a service still computes. A broken one does not recover, so the process ends and is restarted.

    accelerator error ┐
    dead thread       ├─► fault ─► /healthz is 503, requests are refused ─► the process ends `GRACE_SECONDS` later
    endless batch     ┘

The orchestrator (compose's `restart`, Kubernetes) starts the service again. This module is independent of the model.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from shared.problems import NotReady

EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
GRACE_SECONDS = 5.0  # for the replies that name the fault, and for a probe to see it
WATCH_SECONDS = 0.5

logger = logging.getLogger("contrafact.service")


class ModelHealth:
    """What broke the model of one service, if anything; thread-safe."""

    def __init__(self, max_batch_seconds: float = 0.0) -> None:
        """`max_batch_seconds`: a batch that computes for longer counts as hung; 0 for no bound."""
        self._longest = max_batch_seconds
        self._changing = threading.Lock()
        self._started: dict[object, float] = {}
        self._fault = ""

    @property
    def fault(self) -> str:
        """Why the model no longer computes; empty if it does."""
        with self._changing:
            if self._fault or not self._longest:
                return self._fault
            seconds = time.monotonic() - min(self._started.values(), default=time.monotonic())
            if seconds > self._longest:
                self._fault = f"a batch has run for {seconds:.0f} s, more than CONTRAFACT_MAX_BATCH_SECONDS"
            return self._fault

    def report(self, fault: str) -> None:
        """Record why the model no longer computes; the first reason is kept."""
        with self._changing:
            self._fault = self._fault or fault

    def refuse_broken(self) -> None:
        """Raise NotReady if the model no longer computes."""
        if fault := self.fault:
            raise NotReady(f"the service is about to restart: {fault}", retry_after=2 * GRACE_SECONDS)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Mark the time in which a batch is computed."""
        batch = object()
        with self._changing:
            self._started[batch] = time.monotonic()
        try:
            yield
        finally:
            with self._changing:
                del self._started[batch]


def end_process_when_broken(health: ModelHealth, service: str, stopping: threading.Event) -> None:
    """Watch until `stopping`, and end this process `GRACE_SECONDS` after the model broke."""
    while not stopping.wait(WATCH_SECONDS):
        if fault := health.fault:
            end_process(service, fault, GRACE_SECONDS)


def end_process(name: str, fault: str, seconds: float = 0.0) -> NoReturn:
    """Log why, and end this process after `seconds`. `os._exit`, because a hung device blocks a clean end."""
    logger.critical("%s ends with exit code %d so that it is restarted: %s", name, EXIT_CODE, fault)
    time.sleep(seconds)
    os._exit(EXIT_CODE)
