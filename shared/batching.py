"""The micro-batcher: one or a few threads run a model on the compatible items that are waiting.

    submit ──► queue (full, or too long → Overloaded) ──► batch of equal keys ──► run(key, items) in a model thread
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
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median_low
from typing import Generic

from shared.batch_metrics import BatchMetrics
from shared.batch_queue import BatchPolicy, BatchQueue, Entry, Item, Key, Result
from shared.device_errors import is_device_failure, is_out_of_memory
from shared.model_health import ModelHealth
from shared.problems import (
    DeadlineExceeded,
    DeviceFailed,
    InvalidInput,
    ModelStopped,
    NotFinite,
    OutOfMemory,
    Problem,
)
from shared.turns import ComputeTurns, current_start_time

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
