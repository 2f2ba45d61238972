"""The micro-batcher: one or a few threads run a model on the compatible items that are waiting.

    submit ──► queue (bounded; full → Overloaded) ──► batch of equal keys ──► run(key, items) in a model thread
                 expired, cancelled: dropped before they run             out of memory, too long → halved and retried
                                                                         one item's fault → each item alone
                                                                         device failure → reported to `ModelHealth`

The queue is ordered by the start time of the work that each item belongs to (`shared.turns`). The first item always
goes into the next batch, with as many others of the same key as fit, so no key starves. The batcher knows nothing about
models, images or HTTP; `run` is plain blocking code.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from shared.device_errors import is_device_failure, is_out_of_memory
from shared.model_health import ModelHealth
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
from shared.turns import ComputeTurns, current_start_time

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class BatchTooLong(Exception):
    """`run` refuses to compute so many items at once, because it would take too long; the batch is halved."""


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


class BatchMetrics:
    """Prometheus metrics of the batchers of one service, in the service's own registry."""

    def __init__(self, service: str, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            labelled = Histogram(f"contrafact_{name}", text, ["service"], registry=registry, buckets=buckets)
            return labelled.labels(service)

        self.batch_size = histogram("batch_size", "Items that ran together", SIZES)
        self.wait_seconds = histogram("batch_wait_seconds", "Time in the queue, per item", SECONDS)
        self.run_seconds = histogram("batch_run_seconds", "Time in the model, per batch", SECONDS)
        self.waiting = Gauge("contrafact_waiting", "Items in the queue", ["service"], registry=registry).labels(service)
        self._outcomes = Counter(
            "contrafact_batch_items", "Items by outcome", ["service", "outcome"], registry=registry
        )
        self._service = service

    def count(self, outcome: str, amount: int = 1) -> None:
        """Count items: done, failed, expired, cancelled, refused, halved (ran again in a smaller batch)."""
        self._outcomes.labels(self._service, outcome).inc(amount)


@dataclass(eq=False, slots=True)
class _Entry(Generic[Key, Item, Result]):
    key: Key
    item: Item
    deadline: float
    future: asyncio.Future[Result]
    loop: asyncio.AbstractEventLoop
    work_started: float
    arrived: float = field(default_factory=time.monotonic)
    abandoned: bool = False

    def resolve(self, outcome: Result | Exception) -> None:
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


class MicroBatcher(Generic[Key, Item, Result]):
    """Runs `run(key, items) -> results` in its own threads, on batches of waiting items with equal keys.

    `run` must return one result per item, in their order; a result that is an exception is raised to its own caller
    only. A batch for which `run` raises `OutOfMemory` or `BatchTooLong`, or a library's own error of lack of memory, is
    halved. One for which it raises `InvalidInput` or `NotFinite` runs again item by item, so that only the item at
    fault fails. The batcher takes a turn from `turns` before it calls `run`: a process that embeds several services
    passes the same object to all of them, which bounds the number of batches that are computed concurrently. Device
    failures in `run` are reported to `health`; once it has a fault, items are refused. `on_stop` is called when the
    batcher has drained, in the thread that ends last.
    """

    def __init__(
        self,
        run: Callable[[Key, Sequence[Item]], Sequence[Result | Exception]],
        policy: BatchPolicy,
        metrics: BatchMetrics,
        turns: ComputeTurns | None = None,
        health: ModelHealth | None = None,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        self._run = run
        self._on_stop = on_stop
        self._running = policy.at_once
        self.policy = policy
        self._metrics = metrics
        self._turns = turns or ComputeTurns(policy.at_once)
        self._health = health or ModelHealth()
        self._queue: list[_Entry[Key, Item, Result]] = []
        self._changed = threading.Condition()
        self._draining = False
        self._seconds_per_item = 0.0
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
            _Entry[Key, Item, Result](key, item, deadline, loop.create_future(), loop, work_started) for item in items
        ]
        self._enter(entries)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return list(await asyncio.gather(*(entry.future for entry in entries)))
        except TimeoutError as error:
            raise DeadlineExceeded("the deadline passed before the model ran; allow more time or send less") from error
        finally:
            self._leave(entries)

    def drain(self, timeout: float = 30.0) -> None:
        """Refuse new items, finish the queued ones, and stop; give up waiting after `timeout` seconds."""
        until = time.monotonic() + timeout
        with self._changed:
            self._draining = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _enter(self, entries: list[_Entry[Key, Item, Result]]) -> None:
        self._health.refuse_broken()
        with self._changed:
            if self._draining:
                raise NotReady("the service is stopping; send the request to another replica", retry_after=1)
            waiting = len(self._queue)
            if waiting + len(entries) > self.policy.capacity:
                self._metrics.count("refused", len(entries))
                seconds = min(60.0, max(1.0, waiting * self._seconds_per_item))
                raise Overloaded(
                    f"the queue holds {waiting} of {self.policy.capacity} items; try again in {seconds:.0f} s",
                    retry_after=seconds,
                )
            self._set_queue(sorted([*self._queue, *entries], key=lambda entry: entry.work_started))
            self._changed.notify_all()

    def _leave(self, entries: list[_Entry[Key, Item, Result]]) -> None:
        """Remove the entries of a caller that stopped waiting from the queue; a no-op for those that ran."""
        with self._changed:
            for entry in entries:
                entry.abandoned = True
                entry.future.cancel()
            self._forget_dead()
            self._changed.notify_all()

    def _forget_dead(self) -> None:
        now = time.monotonic()
        for entry in self._queue:
            if entry.abandoned:
                self._metrics.count("expired" if entry.deadline <= now else "cancelled")
            elif entry.deadline <= now:
                self._metrics.count("expired")
                entry.resolve(DeadlineExceeded("the deadline passed in the queue; allow more time or send less"))
        self._set_queue([entry for entry in self._queue if not entry.abandoned and entry.deadline > now])

    def _set_queue(self, entries: list[_Entry[Key, Item, Result]]) -> None:
        self._metrics.waiting.inc(len(entries) - len(self._queue))  # a service may have several queues
        self._queue = entries

    def _serve(self) -> None:
        try:
            while self._wait_for_batch():
                with self._turns.turn(self._oldest):
                    self._run_next()
                    # One call may need batches of several keys; younger work must not run between them.
                    while self._turns.may_continue(self._oldest):
                        self._run_next()
        except BaseException as error:
            self._health.report(f"the model's thread died of {type(error).__name__}: {error}")
            raise
        finally:
            with self._changed:
                self._running -= 1
                last = not self._running
            if last and self._on_stop is not None:
                self._on_stop()

    def _run_next(self) -> None:
        batch = self._take()
        if batch:
            self._run_batch(batch)

    def _oldest(self) -> float:
        """Start time of the work that the first queued item belongs to."""
        with self._changed:
            return self._queue[0].work_started if self._queue else math.inf

    def _wait_for_batch(self) -> bool:
        """Wait until a batch is full or its first item has waited `max_wait`; False when drained."""
        with self._changed:
            while True:
                self._forget_dead()
                if not self._queue:
                    if self._draining:
                        return False
                    self._changed.wait()
                    continue
                head = self._queue[0]
                remaining = head.arrived + self.policy.max_wait - time.monotonic()
                siblings = sum(entry.key == head.key for entry in self._queue)
                if remaining <= 0 or siblings >= self.policy.max_batch or self._draining:
                    return True
                self._changed.wait(remaining)

    def _take(self) -> list[_Entry[Key, Item, Result]]:
        with self._changed:
            self._forget_dead()
            if not self._queue:
                return []
            key = self._queue[0].key
            batch = [entry for entry in self._queue if entry.key == key][: self.policy.max_batch]
            batch_ids = {id(entry) for entry in batch}
            self._set_queue([entry for entry in self._queue if id(entry) not in batch_ids])
        now = time.monotonic()
        for entry in batch:
            self._metrics.wait_seconds.observe(now - entry.arrived)
        return batch

    def _run_batch(self, batch: list[_Entry[Key, Item, Result]]) -> None:
        try:
            self._health.refuse_broken()
            self._answer(batch, self._compute(batch), "done")
            return
        except Exception as error:  # the model's error belongs to these requests, not to the model thread
            parts = self._smaller_batches(batch, error)
            if not parts:
                self._answer(batch, [self._explained(error)] * len(batch), "failed")
                return
        except BaseException as error:  # a panic in a compiled library; its state is undefined afterwards
            self._health.report(f"the model's code ended with {type(error).__name__}: {error}")
            self._answer(batch, [DeviceFailed(f"the model's code broke: {error}")] * len(batch), "failed")
            return
        # Outside the except block: the error's traceback would keep the failed batch's tensors alive.
        self._metrics.count("halved", len(batch))
        for part in parts:
            self._run_batch(part)

    def _smaller_batches(
        self, batch: list[_Entry[Key, Item, Result]], error: Exception
    ) -> list[list[_Entry[Key, Item, Result]]]:
        """What to run after a batch failed: halves for lack of memory or time, each item alone if one is at fault."""
        if len(batch) == 1:
            return []
        if isinstance(error, InvalidInput | NotFinite) and not isinstance(error, ModelStopped):
            return [[entry] for entry in batch]
        if self.policy.deterministic or not (isinstance(error, BatchTooLong) or is_out_of_memory(error)):
            return []
        half = (len(batch) + 1) // 2
        return [batch[:half], batch[half:]]

    def _explained(self, error: Exception) -> Exception:
        """The error that the callers get; reports a failure of the device."""
        if is_device_failure(error):
            self._health.report(f"the accelerator failed: {error}")
            return DeviceFailed(f"the accelerator failed, so the service restarts: {error}")
        if is_out_of_memory(error) and not isinstance(error, OutOfMemory):
            return OutOfMemory(f"the device has too little memory for one item at a time: {error}")
        return error

    def _compute(self, batch: list[_Entry[Key, Item, Result]]) -> Sequence[Result | Exception]:
        items = [entry.item for entry in batch]
        if self.policy.deterministic:
            items += [items[-1]] * (self.policy.max_batch - len(items))
        self._metrics.batch_size.observe(len(batch))
        with self._timed(len(batch)), self._health.computing():
            results = self._run(batch[0].key, items)
        if len(results) != len(items):
            raise Problem(f"the model returned {len(results)} results for {len(items)} items")
        return results[: len(batch)]

    @contextmanager
    def _timed(self, size: int) -> Iterator[None]:
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        self._metrics.run_seconds.observe(seconds)
        self._seconds_per_item += 0.3 * (seconds / size - self._seconds_per_item)

    def _answer(
        self, batch: list[_Entry[Key, Item, Result]], outcomes: Sequence[Result | Exception], outcome: str
    ) -> None:
        self._metrics.count(outcome, len(batch))
        for entry, value in zip(batch, outcomes, strict=True):
            entry.resolve(value)
