"""Micro-batchers that share turns at one model: one computes at a time, the oldest work first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from shared.service.batch_metrics import BatchMetrics
from shared.service.batching import BatchPolicy, MicroBatcher
from shared.service.turns import ComputeTurns
from tests.support.batching import Recorder, Run, batcher, soon, submit_as_of, until_waiting
from tests.support.work_site import wait_for


def test_one_model_computes_at_a_time_among_batchers_that_share_turns() -> None:
    turns = ComputeTurns()
    running: list[int] = []
    overlaps: list[int] = []

    def run(key: str, items: Sequence[int]) -> list[int]:
        running.append(1)
        overlaps.append(len(running))
        time.sleep(0.01)
        running.pop()
        return list(items)

    owners = [MicroBatcher(run, BatchPolicy(1), BatchMetrics("test", CollectorRegistry()), turns) for _ in range(3)]

    async def main() -> None:
        await asyncio.gather(*(owner.submit(n, key="a", deadline=soon()) for n in range(3) for owner in owners))

    asyncio.run(main())
    for owner in owners:
        owner.drain()
    assert overlaps == [1] * 9


def test_the_queue_is_ordered_by_the_start_of_the_work() -> None:
    run, registry = Recorder(), CollectorRegistry()
    owner = batcher(run, registry, max_batch=2)

    async def main() -> None:
        run.gate.clear()
        tasks = [asyncio.create_task(submit_as_of(owner, 5.0, 0))]
        await run.hold()
        for number, (at, items) in enumerate([(3.0, (31, 32)), (2.0, (21, 22)), (1.0, (11,))], start=1):
            tasks.append(asyncio.create_task(submit_as_of(owner, at, *items)))
            await until_waiting(registry, [0, 2, 4, 5][number])
        run.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    owner.drain()
    assert [items for _, items in run.batches] == [[0], [11, 21], [22, 31], [32]]


def batchers_sharing(turns: ComputeTurns, run: Run) -> list[MicroBatcher[str, int, int]]:
    """Two batchers of single items over the same turns."""
    policy = BatchPolicy(1, max_wait=0.0)
    return [MicroBatcher(run, policy, BatchMetrics("test", CollectorRegistry()), turns) for _ in range(2)]


def test_of_batchers_that_share_turns_the_one_with_the_oldest_work_is_next() -> None:
    turns, run = ComputeTurns(), Recorder()
    slow, quick = batchers_sharing(turns, run)

    async def main() -> None:
        run.gate.clear()
        later = asyncio.create_task(submit_as_of(slow, 2.0, 20, 21, 22, 23))
        await run.hold()
        first = asyncio.create_task(submit_as_of(quick, 1.0, 10))
        await asyncio.to_thread(wait_for, lambda: turns.waiting > 0)
        run.gate.set()
        await asyncio.gather(first, later)

    asyncio.run(main())
    for owner in (slow, quick):
        owner.drain()
    assert [items for _, items in run.batches] == [[20], [10], [21], [22], [23]]


def test_no_younger_work_comes_between_two_batches_of_the_oldest() -> None:
    turns, run = ComputeTurns(), Recorder()
    slow, quick = batchers_sharing(turns, run)

    async def main() -> None:
        run.gate.clear()
        first = asyncio.create_task(submit_as_of(quick, 1.0, 10, 11, 12))
        await run.hold()
        later = asyncio.create_task(submit_as_of(slow, 2.0, 20, 21))
        await asyncio.to_thread(wait_for, lambda: turns.waiting > 0)
        run.gate.set()
        await asyncio.gather(first, later)

    asyncio.run(main())
    for owner in (slow, quick):
        owner.drain()
    assert [items for _, items in run.batches] == [[10], [11], [12], [20], [21]]
