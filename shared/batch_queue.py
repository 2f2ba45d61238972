"""The queue of a micro-batcher: items in the order in which their work started, taken as batches of equal keys."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from shared.batch_metrics import BatchMetrics
from shared.problems import DeadlineExceeded, NotReady, Overloaded

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Capacity of the queue and how batches form.

    An idle model waits at most `max_wait` seconds (from the first item's arrival) for a batch to fill up to
    `max_batch`. `deterministic`: every batch has exactly `max_batch` items, short ones padded by repeating the last
    item, so that a result never depends on its neighbours; a batch that runs out of memory is then not halved, because
    another batch shape gives other bits. `at_once` batches run concurrently, each in its own thread: `run` must be
    thread-safe if it is above 1.
    """

    max_batch: int = 8
    max_wait: float = 0.005
    capacity: int = 256
    deterministic: bool = False
    at_once: int = 1

    def __post_init__(self) -> None:
        if min(self.max_batch, self.capacity, self.at_once) < 1 or self.max_wait < 0:
            raise ValueError(f"max_batch, capacity and at_once must be at least 1 and max_wait at least 0: {self}")


@dataclass(eq=False, slots=True)
class Entry(Generic[Key, Item, Result]):
    """An item in the queue, with the future that its caller awaits in the event loop `loop`."""

    key: Key
    item: Item
    deadline: float
    future: asyncio.Future[Result]
    loop: asyncio.AbstractEventLoop
    work_started: float
    arrived: float = field(default_factory=time.monotonic)
    abandoned: bool = False

    def resolve(self, outcome: Result | Exception) -> None:
        """Give the caller the result, or raise the exception to it."""
        try:
            self.loop.call_soon_threadsafe(self._set, outcome)
        except RuntimeError:
            self.abandoned = True  # the caller's event loop is closed

    def _set(self, outcome: Result | Exception) -> None:
        if self.future.done():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class BatchQueue(Generic[Key, Item, Result]):
    """A bounded queue between callers and the model's threads. Expired and abandoned items leave it before they run."""

    def __init__(self, policy: BatchPolicy, metrics: BatchMetrics) -> None:
        self._policy, self._metrics = policy, metrics
        self._entries: list[Entry[Key, Item, Result]] = []
        self._changed = threading.Condition()
        self._draining = False

    def drain(self) -> None:
        """Refuse new items from now on."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def enter(
        self, entries: list[Entry[Key, Item, Result]], seconds_of: Callable[[Key], float], running: float
    ) -> None:
        """Add the entries, all or none. Raises NotReady while draining.

        Raises Overloaded beyond the capacity, or if the work that is `running` (in seconds), the items that go first
        and the entries take longer than until the deadline: a caller that waits in vain would lose what runs last. What
        goes first always enters. `seconds_of` estimates how long an item of a key takes.
        """
        with self._changed:
            if self._draining:
                raise NotReady("the service is stopping; send the request to another replica", retry_after=1)
            waiting = len(self._entries)
            if waiting + len(entries) > self._policy.capacity:
                seconds = self._seconds(self._entries, seconds_of)
                raise self._refusal(
                    len(entries), f"the queue holds {waiting} of {self._policy.capacity} items", seconds
                )
            self._refuse_late(entries, seconds_of, running)
            self._set(sorted([*self._entries, *entries], key=lambda entry: entry.work_started))
            self._changed.notify_all()

    def _refuse_late(
        self, entries: list[Entry[Key, Item, Result]], seconds_of: Callable[[Key], float], running: float
    ) -> None:
        if not entries:
            return
        deadline, work_started = entries[0].deadline, entries[0].work_started  # equal for all of a submission
        ahead = [entry for entry in self._entries if entry.work_started <= work_started]
        seconds, left = running + self._seconds(ahead + entries, seconds_of), deadline - time.monotonic()
        if ahead and seconds > left:
            reason = f"the queue takes {seconds:.0f} s, and the deadline is in {max(0.0, left):.0f} s"
            raise self._refusal(len(entries), reason, seconds - left)

    def _seconds(self, entries: list[Entry[Key, Item, Result]], seconds_of: Callable[[Key], float]) -> float:
        counts = Counter(entry.key for entry in entries)
        return sum(self._padded(count) * seconds_of(key) for key, count in counts.items()) / self._policy.at_once

    def _padded(self, count: int) -> int:
        """How many items are computed for so many."""
        size = self._policy.max_batch
        return -(-count // size) * size if self._policy.deterministic else count

    def _refusal(self, count: int, reason: str, seconds: float) -> Overloaded:
        self._metrics.count("refused", count)
        seconds = min(60.0, max(1.0, seconds))
        return Overloaded(f"{reason}; try again in {seconds:.0f} s", retry_after=seconds)

    def leave(self, entries: list[Entry[Key, Item, Result]]) -> None:
        """Remove the entries of a caller that stopped waiting from the queue; a no-op for those that ran."""
        with self._changed:
            for entry in entries:
                entry.abandoned = True
                entry.future.cancel()
            self._forget_dead()
            self._changed.notify_all()

    def oldest(self) -> float:
        """Start time of the work that the first queued item belongs to."""
        with self._changed:
            return self._entries[0].work_started if self._entries else math.inf

    def wait_for_batch(self) -> bool:
        """Wait until a batch is full or its first item has waited `max_wait`; False when drained."""
        with self._changed:
            while True:
                self._forget_dead()
                if not self._entries:
                    if self._draining:
                        return False
                    self._changed.wait()
                    continue
                head = self._entries[0]
                remaining = head.arrived + self._policy.max_wait - time.monotonic()
                siblings = sum(entry.key == head.key for entry in self._entries)
                if remaining <= 0 or siblings >= self._policy.max_batch or self._draining:
                    return True
                self._changed.wait(remaining)

    def take(self, seconds_of: Callable[[Key], float]) -> list[Entry[Key, Item, Result]]:
        """Remove the next batch from the queue and return it; empty if nobody waits any more.

        Items that would end after their deadline make way for those behind them, if there are any, and a batch is
        smaller if it would otherwise end after the deadline of one of its items.
        """
        with self._changed:
            self._forget_dead()
            self._drop_late(seconds_of)
            if not self._entries:
                return []
            key = self._entries[0].key
            batch = [entry for entry in self._entries if entry.key == key][: self._policy.max_batch]
            batch = self._in_time(batch, seconds_of(key))
            batch_ids = {id(entry) for entry in batch}
            self._set([entry for entry in self._entries if id(entry) not in batch_ids])
        now = time.monotonic()
        for entry in batch:
            self._metrics.wait_seconds.observe(now - entry.arrived)
        return batch

    def _in_time(self, batch: list[Entry[Key, Item, Result]], seconds: float) -> list[Entry[Key, Item, Result]]:
        """The first items of a batch that end before the deadline of each if they run together; at least one."""
        if self._policy.deterministic:  # it takes as long with fewer
            return batch
        now, deadline = time.monotonic(), math.inf
        for count, entry in enumerate(batch, 1):
            deadline = min(deadline, entry.deadline)
            if count > 1 and now + count * seconds >= deadline:
                return batch[: count - 1]
        return batch

    def _drop_late(self, seconds_of: Callable[[Key], float]) -> None:
        now = time.monotonic()
        seconds = {key: self._padded(1) * seconds_of(key) for key in {entry.key for entry in self._entries}}
        in_time = [entry for entry in self._entries if now + seconds[entry.key] < entry.deadline]
        if not in_time:  # nothing is gained, and the estimate may be wrong
            return
        for entry in self._entries:
            if now + seconds[entry.key] >= entry.deadline:
                self._metrics.count("expired")
                entry.resolve(DeadlineExceeded("the deadline is too near for the model; allow more time or send less"))
        self._set(in_time)

    def _forget_dead(self) -> None:
        now = time.monotonic()
        for entry in self._entries:
            if entry.abandoned:
                self._metrics.count("expired" if entry.deadline <= now else "cancelled")
            elif entry.deadline <= now:
                self._metrics.count("expired")
                entry.resolve(DeadlineExceeded("the deadline passed in the queue; allow more time or send less"))
        self._set([entry for entry in self._entries if not entry.abandoned and entry.deadline > now])

    def _set(self, entries: list[Entry[Key, Item, Result]]) -> None:
        self._metrics.waiting.inc(len(entries) - len(self._entries))  # a service may have several queues
        self._entries = entries
