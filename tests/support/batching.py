"""A micro-batcher under test, and what it runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry

from shared.problems import OutOfMemory
from shared.service.batch_metrics import BatchMetrics
from shared.service.batching import BatchPolicy, MicroBatcher
from shared.service.turns import work_started
from tests.support.work_site import wait_for

Run = Callable[[str, Sequence[int]], Sequence[int | Exception]]
PATIENCE = 120.0  # seconds, which only a hang takes


class Recorder:
    """A `run` that squares, remembers its batches, and can be held at a gate."""

    def __init__(self, fits: int = 1_000) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.fits = fits

    def __call__(self, key: str, items: Sequence[int]) -> list[int | Exception]:
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        self.batches.append((key, list(items)))
        if len(items) > self.fits:
            raise OutOfMemory("too many at once")
        return [ValueError("unlucky") if item == 13 else item * item for item in items]

    async def hold(self) -> None:
        """Return once the owner's thread stands at the closed gate."""
        assert await asyncio.to_thread(self.entered.wait, PATIENCE)


def batcher(run: Run, registry: CollectorRegistry | None = None, **policy: float) -> MicroBatcher[str, int, int]:
    chosen = BatchPolicy(
        max_batch=int(policy.get("max_batch", 4)),
        max_wait=policy.get("max_wait", 0.0),
        capacity=int(policy.get("capacity", 256)),
        deterministic=bool(policy.get("deterministic", False)),
    )
    return MicroBatcher(run, chosen, BatchMetrics("test", registry or CollectorRegistry()))


def soon(seconds: float = PATIENCE) -> float:
    return time.monotonic() + seconds


async def submit_together(owner: MicroBatcher[str, int, int], *items: int) -> list[int | BaseException]:
    """The results of items of one key, or their errors."""
    requests = (owner.submit(item, key="a", deadline=soon()) for item in items)
    return await asyncio.gather(*requests, return_exceptions=True)


async def submit_as_of(owner: MicroBatcher[str, int, int], at: float, *items: int) -> list[int]:
    """Items that belong to work that started at a given time."""
    with work_started(at):
        return await owner.submit_all(list(items), key="a", deadline=soon())


async def until_waiting(registry: CollectorRegistry, count: int) -> None:
    """Return once so many items are queued."""
    queued = partial(registry.get_sample_value, "contrafact_waiting", {"service": "test"})
    await asyncio.to_thread(wait_for, lambda: queued() == count)
