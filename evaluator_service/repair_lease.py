"""A trainer's lease of a repair: heartbeats while it works, and whether it must stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shared.problems import DependencyFailed
from shared.schemas.repairs import Heartbeat, RepairLease
from shared.storage import ObjectMissing, ObjectStore, repair_key

logger = logging.getLogger("contrafact.trainer")


class LeaseEnded(Exception):
    """The lease was lost, or the trainer is stopping; the work must end without further writes."""


class LeaseState:
    """Whether the lease still holds, and the progress to report in the next heartbeat."""

    def __init__(self, stopping: threading.Event) -> None:
        self.lost = threading.Event()
        self._stopping = stopping
        self.heartbeat = Heartbeat(beat=0)

    def record_progress(self, done: int, total: int, arm: str) -> None:
        """Record the progress. Raises LeaseEnded."""
        self.heartbeat = Heartbeat(beat=0, done=done, total=total, arm=arm)
        self.refuse_ended()

    def refuse_ended(self) -> None:
        """Raise LeaseEnded if the work must not continue."""
        if self.lost.is_set() or self._stopping.is_set():
            raise LeaseEnded


@contextmanager
def heartbeats(
    store: ObjectStore, lease: RepairLease, seconds: float, stopping: threading.Event
) -> Iterator[LeaseState]:
    """Write heartbeats at once and then regularly while the block runs. Raises LeaseEnded if the lease was lost."""
    state, over = LeaseState(stopping), threading.Event()

    def beat(number: int) -> None:
        if not _holds(store, lease):
            state.lost.set()
            return
        heartbeat = state.heartbeat.model_copy(update={"beat": number})
        store.put(repair_key(lease.repair, lease.token, "progress.json"), heartbeat.model_dump_json().encode())

    def keep_beating() -> None:
        number = 1
        while not over.wait(seconds) and not state.lost.is_set():
            number += 1
            try:
                beat(number)
            except DependencyFailed as error:  # a longer outage lets the lease expire
                logger.warning("no heartbeat could be written: %s", error)

    beat(1)
    state.refuse_ended()
    thread = threading.Thread(target=keep_beating, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield state
    finally:
        over.set()
        thread.join()


def _holds(store: ObjectStore, lease: RepairLease) -> bool:
    try:
        return RepairLease.model_validate_json(store.get(repair_key(lease.repair, "grant.json"))) == lease
    except ObjectMissing:
        return False
