"""The micro-batcher: one or a few threads run a model on the compatible items that are waiting.

    submit ──► queue (full, or too long → Overloaded) ──► batch of equal keys ──► run(key, items) in a model thread
                 expired, cancelled: dropped before they run             out of memory, too long → halved and retried
                                                                         one item's fault → each item alone
                                                                         device failure → reported to `ModelHealth`

The queue is ordered by the start time of the work that each item belongs to (`shared.service.turns`). The first item
always goes into the next batch, with as many others of the same key as fit, so no key starves. The batcher knows
nothing about models, images or HTTP; `run` is plain blocking code.

The queue of a micro-batcher: items in the order in which their work started, taken as batches of equal keys.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median_low
from typing import Generic, TypeVar

from shared.problems import (
    DeadlineExceeded,
    DeviceFailed,
    InvalidInput,
    ModelStopped,
    NotFinite,
    NotReady,
    OutOfMemory,
    Overloaded,
    Problem,
)
from shared.service.batch_metrics import BatchMetrics
from shared.service.device_errors import is_device_failure, is_out_of_memory
from shared.service.model_health import ModelHealth
from shared.service.turns import ComputeTurns, current_start_time

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


LATEST, KINDS = 5, 256
HALF_LIFE_SECONDS = 600.0  # the default deadline of a call


class BatchTooLong(Exception):
    """`run` refuses to compute so many items at once, because it would take too long; the batch is halved."""


class Durations:
    """How long an item of each kind takes: the median of the latest batches, so that one outlier counts little.

    It halves every `HALF_LIFE_SECONDS` without another batch of the kind, since what is refused is not timed: if the
    estimate is wrong, something gets through after a while. The kinds that were timed last are kept.
    """

    def __init__(self) -> None:
        self._latest: OrderedDict[Hashable, tuple[deque[float], float]] = OrderedDict()
        self._changing = threading.Lock()

    def add(self, kind: Hashable, seconds: float) -> None:
        """Enter how long an item of a batch took."""
        with self._changing:
            latest, _ = self._latest.pop(kind, (deque[float](maxlen=LATEST), 0.0))
            latest.append(seconds)
            self._latest[kind] = latest, time.monotonic()
            if len(self._latest) > KINDS:
                self._latest.popitem(last=False)

    def of(self, kind: Hashable) -> float:
        """Seconds per item; 0 for a kind that is unknown."""
        with self._changing:
            if kind not in self._latest:
                return 0.0
            latest, at = self._latest[kind]
            half_lives = (time.monotonic() - at) / HALF_LIFE_SECONDS
            return median_low(latest) * math.pow(0.5, half_lives)


class MicroBatcher(Generic[Key, Item, Result]):
    """Runs `run(key, items) -> results` in its own threads, on batches of waiting items with equal keys.

    `run` must return one result per item, in their order; a result that is an exception is raised to its own caller
    only. A batch for which `run` raises `OutOfMemory` or `BatchTooLong`, or a library's own error of lack of memory, is
    halved. One for which it raises `InvalidInput` or `NotFinite` runs again item by item, so that only the item at
    fault fails. The batcher takes a turn from `turns` before it calls `run`: a process that embeds several services
    passes the same object to all of them, which bounds the number of batches that are computed concurrently. Device
    failures in `run` are reported to `health`; once it has a fault, items are refused. `on_stop` is called when the
    batcher has drained, in the thread that ends last. Items that would wait beyond their deadline are refused at once:
    `kind` gives what an item's duration depends on most, by its key (the key itself, if it is that).
    """

    def __init__(
        self,
        run: Callable[[Key, Sequence[Item]], Sequence[Result | Exception]],
        policy: BatchPolicy,
        metrics: BatchMetrics,
        turns: ComputeTurns | None = None,
        health: ModelHealth | None = None,
        on_stop: Callable[[], None] | None = None,
        kind: Callable[[Key], Hashable] = lambda key: key,
    ) -> None:
        self._run = run
        self._kind = kind
        self._on_stop = on_stop
        self._running = policy.at_once
        self.policy = policy
        self._metrics = metrics
        self._turns = turns or ComputeTurns(policy.at_once)
        self._health = health or ModelHealth()
        self._queue = BatchQueue[Key, Item, Result](policy, metrics)
        self._ending = threading.Lock()
        self._durations = Durations()
        self._expected_ends: dict[int, float] = {}  # of the running batches, by thread
        self._threads = [
            threading.Thread(target=self._serve, name=f"model-{number}", daemon=True)
            for number in range(policy.at_once)
        ]
        for thread in self._threads:
            thread.start()

    async def submit(self, item: Item, *, key: Key, deadline: float) -> Result:
        """Return the result of one item; see `submit_all`."""
        return (await self.submit_all([item], key=key, deadline=deadline))[0]

    async def submit_all(self, items: Sequence[Item], *, key: Key, deadline: float) -> list[Result]:
        """Return the results of `items`, in order. Either all of them enter the queue, or none.

        `deadline` is on the clock of `time.monotonic()`. When it passes, or the awaiting task is cancelled, items
        that have not run yet are dropped. Raises Overloaded, DeadlineExceeded, NotReady (draining), and whatever
        `run` raised for the batch of one of the items.
        """
        loop = asyncio.get_running_loop()
        work_started = current_start_time() or time.time()
        entries = [
            Entry[Key, Item, Result](key, item, deadline, loop.create_future(), loop, work_started) for item in items
        ]
        self._health.refuse_broken()
        self._queue.enter(entries, self._seconds_of, self._seconds_running())
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return list(await asyncio.gather(*(entry.future for entry in entries)))
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed before the model ran; allow more time or send less") from error
        finally:
            self._queue.leave(entries)

    def drain(self, timeout: float = 30.0) -> None:
        """Refuse new items, finish the queued ones, and stop; give up waiting after `timeout` seconds."""
        until = time.monotonic() + timeout
        self._queue.drain()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _serve(self) -> None:
        try:
            while self._queue.wait_for_batch():
                with self._turns.turn(self._queue.oldest):
                    self._run_next()
                    # One call may need batches of several keys; younger work must not run between them.
                    while self._turns.may_continue(self._queue.oldest):
                        self._run_next()
        except BaseException as error:
            self._health.report(f"the model's thread died of {type(error).__name__}: {error}")
            raise
        finally:
            with self._ending:
                self._running -= 1
                last = not self._running
            if last and self._on_stop is not None:
                self._on_stop()

    def _run_next(self) -> None:
        batch = self._queue.take(self._seconds_of)
        if batch:
            self._run_batch(batch)

    def _run_batch(self, batch: list[Entry[Key, Item, Result]]) -> None:
        try:
            self._health.refuse_broken()
            self._answer(batch, self._compute(batch), "done")
            return
        except Exception as error:  # the model's error belongs to these requests, not to the model thread
            smaller_batches = self._smaller_batches(batch, error)
            if not smaller_batches:
                self._answer(batch, [self._explain(error)] * len(batch), "failed")
                return
        except BaseException as error:  # a panic in a compiled library; its state is undefined afterwards
            self._health.report(f"the model's code ended with {type(error).__name__}: {error}")
            self._answer(batch, [DeviceFailed(f"the model's code broke: {error}")] * len(batch), "failed")
            return
        # Outside the except block: the error's traceback would keep the failed batch's tensors alive.
        self._metrics.count("halved", len(batch))
        for smaller in smaller_batches:
            self._run_batch(smaller)

    def _smaller_batches(
        self, batch: list[Entry[Key, Item, Result]], error: Exception
    ) -> list[list[Entry[Key, Item, Result]]]:
        """What to run after a batch failed: halves for lack of memory or time, each item alone if one is at fault."""
        if len(batch) == 1:
            return []
        if isinstance(error, InvalidInput | NotFinite) and not isinstance(error, ModelStopped):
            return [[entry] for entry in batch]
        if self.policy.deterministic or not (isinstance(error, BatchTooLong) or is_out_of_memory(error)):
            return []
        half = (len(batch) + 1) // 2
        return [batch[:half], batch[half:]]

    def _explain(self, error: Exception) -> Exception:
        """The error that the callers get; reports a failure of the device."""
        if is_device_failure(error):
            self._health.report(f"the accelerator failed: {error}")
            return DeviceFailed(f"the accelerator failed, so the service restarts: {error}")
        if is_out_of_memory(error) and not isinstance(error, OutOfMemory):
            return OutOfMemory(f"the device has too little memory for one item at a time: {error}")
        return error

    def _compute(self, batch: list[Entry[Key, Item, Result]]) -> Sequence[Result | Exception]:
        items = [entry.item for entry in batch]
        if self.policy.deterministic:
            items += [items[-1]] * (self.policy.max_batch - len(items))
        self._metrics.batch_size.observe(len(batch))
        with self._time(batch[0].key, len(items)), self._health.computing():
            results = self._run(batch[0].key, items)
        if len(results) != len(items):
            raise Problem(f"the model returned {len(results)} results for {len(items)} items")
        return results[: len(batch)]

    @contextmanager
    def _time(self, key: Key, size: int) -> Iterator[None]:
        started, thread = time.monotonic(), threading.get_ident()
        self._expected_ends[thread] = started + size * self._seconds_of(key)
        try:
            yield
        finally:
            del self._expected_ends[thread]
        seconds = time.monotonic() - started
        self._metrics.run_seconds.observe(seconds)
        self._durations.add(self._kind(key), seconds / size)

    def _seconds_of(self, key: Key) -> float:
        """How long an item of a batch takes."""
        return self._durations.of(self._kind(key))

    def _seconds_running(self) -> float:
        """How long until a thread is free, if its batch takes as long as expected."""
        ends = list(self._expected_ends.values())
        free = len(ends) < self.policy.at_once
        return 0.0 if free else max(0.0, min(ends) - time.monotonic())

    def _answer(
        self, batch: list[Entry[Key, Item, Result]], outcomes: Sequence[Result | Exception], outcome: str
    ) -> None:
        self._metrics.count(outcome, len(batch))
        for entry, value in zip(batch, outcomes, strict=True):
            entry.resolve(value)
