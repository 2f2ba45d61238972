"""The leases of one worker's steps. A thread renews each lease until its step ends, also while the worker stops.

When a lease is lost, the step's calls are cancelled: its job was cancelled or deleted, or another worker has the image.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.database.sessions import DATABASE_AWAY, Sessions, reading
from gateway.model_services.clients import Cancellation, cancellable
from gateway.queue import leases
from gateway.queue.leases import Lease

CHECK_SECONDS = 2.0  # a cancelled job's calls end within this time

logger = logging.getLogger("contrafact.worker")


class LeaseLost(Exception):
    """The lease expired or the job was cancelled, so the step must end."""


class Stopping(Exception):
    """The worker is stopping, so the step releases its lease."""


class HeldLeases:
    """The leases of the running steps by token, each with the cancellation of the step's calls. Thread-safe."""

    def __init__(self, sessions: Sessions, lease_seconds: float, renewal_seconds: float) -> None:
        self._sessions = sessions
        self._lease_seconds = lease_seconds
        self._renewal_seconds = renewal_seconds
        self._changed = threading.Condition()
        self._leases: dict[str, tuple[Lease, Cancellation]] = {}
        self._stopping = False

    @contextmanager
    def renewing(self, lease: Lease) -> Iterator[None]:
        """Renew the lease while the block runs; cancel the block's calls when the lease is lost, or on `stop`."""
        cancellation = Cancellation()
        with self._changed:
            self._leases[lease.token] = lease, cancellation
            if self._stopping:
                cancellation.cancel()
        try:
            with cancellable(cancellation):
                yield
        finally:
            with self._changed:
                self._leases.pop(lease.token, None)
                self._changed.notify_all()

    def refuse_ended(self, lease: Lease) -> None:
        """Raises Stopping, or LeaseLost if the lease no longer holds."""
        if self._stopping:
            raise Stopping
        if lease.token not in self._leases:
            raise LeaseLost(lease.id)

    def stop(self) -> None:
        """Cancel the calls of all steps. Their leases are renewed until the steps have ended."""
        with self._changed:
            self._stopping = True
            cancellations = [cancellation for _, cancellation in self._leases.values()]
            self._changed.notify_all()
        for cancellation in cancellations:
            cancellation.cancel()

    def renewal_loop(self) -> None:
        """Renew leases and detect lost ones, until `stop` is called and the last step has ended."""
        renewal_due = 0.0
        while self._wait(min(CHECK_SECONDS, self._renewal_seconds)):
            renewal = time.monotonic() >= renewal_due
            try:
                self._check(renewal)
            except DATABASE_AWAY as error:  # temporary; the thread must go on
                logger.warning("leases are renewed late: %s", error)
            else:
                renewal_due = time.monotonic() + self._renewal_seconds if renewal else renewal_due

    def _wait(self, seconds: float) -> bool:
        with self._changed:
            return not self._changed.wait_for(lambda: self._stopping and not self._leases, seconds)

    def _check(self, renewal: bool) -> None:
        with self._changed:
            current = [lease for lease, _ in self._leases.values()]
        if not current:
            return
        if renewal:
            with self._sessions.begin() as session:
                live = leases.renew(session, current, self._lease_seconds)
        else:
            with reading(self._sessions) as session:
                live = leases.live_tokens(session, current)
        for lease in current:
            if lease.token not in live:
                self._cancel_step(lease)

    def _cancel_step(self, lease: Lease) -> None:
        with self._changed:
            _, cancellation = self._leases.pop(lease.token, (lease, None))
        if cancellation is not None:
            cancellation.cancel()
