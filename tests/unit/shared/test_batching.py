"""The micro-batcher: order, fairness, dropping, halving, capacity, determinism, drain."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from shared.batching import BatchMetrics, BatchPolicy, MicroBatcher
from shared.problems import DeadlineExceeded, DeviceFailed, NotReady, OutOfMemory, Overloaded, Problem
from shared.turns import ComputeTurns, start_time_from, work_started
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


@given(
    submissions=st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(100, 10_000), min_size=1, max_size=5)), max_size=12
    ),
    max_batch=st.integers(1, 6),
    deterministic=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_every_item_runs_once_in_order_and_only_with_its_own_key(
    submissions: list[tuple[str, list[int]]], max_batch: int, deterministic: bool
) -> None:
    run = Recorder()
    owner = batcher(run, max_batch=max_batch, deterministic=deterministic)

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(owner.submit_all(items, key=key, deadline=soon()) for key, items in submissions))

    try:
        replies = asyncio.run(main())
    finally:
        owner.drain()
    assert replies == [[item * item for item in items] for _, items in submissions]
    assert all(len(items) <= max_batch for _, items in run.batches)
    if deterministic:
        assert all(len(items) == max_batch for _, items in run.batches)
        return
    for key in "abc":
        sent = [item for name, items in submissions if name == key for item in items]
        assert [item for name, items in run.batches if name == key for item in items] == sent


def test_the_oldest_item_is_always_in_the_next_batch() -> None:
    """A key with many items cannot starve another: batches start with the oldest item of the queue."""
    run = Recorder()
    owner = batcher(run, max_batch=3)

    async def main() -> None:
        run.gate.clear()
        blocker = asyncio.create_task(owner.submit(0, key="z", deadline=soon()))
        await run.hold()
        sent = [("a", 1), ("a", 2), ("b", 3), ("a", 4), ("a", 5), ("c", 6), ("b", 7), ("a", 8)]
        waiting = []
        for key, item in sent:
            waiting.append(asyncio.create_task(owner.submit(item, key=key, deadline=soon())))
            await asyncio.sleep(0)
        run.gate.set()
        await asyncio.gather(blocker, *waiting)

    asyncio.run(main())
    owner.drain()
    assert run.batches == [("z", [0]), ("a", [1, 2, 4]), ("b", [3, 7]), ("a", [5, 8]), ("c", [6])]


def test_waiting_fills_a_batch_and_a_full_one_does_not_wait() -> None:
    run = Recorder()
    owner = batcher(run, max_batch=4, max_wait=PATIENCE)

    async def main() -> float:
        started = time.monotonic()
        await asyncio.gather(*(owner.submit(item, key="a", deadline=soon()) for item in range(4)))
        return time.monotonic() - started

    assert asyncio.run(main()) < PATIENCE / 2
    owner.drain()
    assert run.batches == [("a", [0, 1, 2, 3])]


def test_expired_items_are_answered_at_once_and_never_run() -> None:
    run = Recorder()
    owner = batcher(run)

    async def main() -> None:
        run.gate.clear()
        blocker = asyncio.create_task(owner.submit(1, key="a", deadline=soon()))
        await run.hold()
        with pytest.raises(DeadlineExceeded):  # while the gate is closed
            await owner.submit(2, key="a", deadline=soon(0.05))
        run.gate.set()
        await blocker

    asyncio.run(main())
    owner.drain()
    assert run.batches == [("a", [1])]


def test_cancelled_items_never_run_and_free_their_place() -> None:
    run = Recorder()
    owner = batcher(run, capacity=2)

    async def main() -> int:
        run.gate.clear()
        blocker = asyncio.create_task(owner.submit(1, key="a", deadline=soon()))
        await run.hold()
        doomed = asyncio.create_task(owner.submit_all([2, 3], key="a", deadline=soon()))
        await asyncio.sleep(0)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        waiting = asyncio.create_task(owner.submit(4, key="a", deadline=soon()))
        await asyncio.sleep(0)
        run.gate.set()
        await blocker
        return await waiting

    assert asyncio.run(main()) == 16
    owner.drain()
    assert run.batches == [("a", [1]), ("a", [4])]


def test_a_full_queue_refuses_all_or_nothing_and_says_when_to_come_back() -> None:
    run = Recorder()
    owner = batcher(run, capacity=3)

    async def main() -> list[int]:
        run.gate.clear()
        blocker = asyncio.create_task(owner.submit(1, key="a", deadline=soon()))
        await run.hold()
        waiting = asyncio.create_task(owner.submit_all([2, 3], key="a", deadline=soon()))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refusal:
            await owner.submit_all([4, 5], key="a", deadline=soon())
        assert refusal.value.retry_after is not None
        assert 1 <= refusal.value.retry_after <= 60
        last = asyncio.create_task(owner.submit(6, key="a", deadline=soon()))
        await asyncio.sleep(0)
        run.gate.set()
        return [await blocker, *await waiting, await last]

    assert asyncio.run(main()) == [1, 4, 9, 36]
    owner.drain()
    assert sorted(item for _, items in run.batches for item in items) == [1, 2, 3, 6]


@given(items=st.lists(st.integers(100, 999), min_size=1, max_size=9), fits=st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_out_of_memory_halves_until_it_fits(items: list[int], fits: int) -> None:
    run = Recorder(fits)
    owner = batcher(run, max_batch=9, max_wait=0.05)
    replies = asyncio.run(owner.submit_all(items, key="a", deadline=soon()))
    owner.drain()
    assert replies == [item * item for item in items]
    assert [item for _, batch in run.batches if len(batch) <= fits for item in batch] == items


def test_out_of_memory_of_one_item_alone_is_its_own_failure() -> None:
    owner = batcher(Recorder(fits=0))
    with pytest.raises(OutOfMemory):
        asyncio.run(owner.submit(1, key="a", deadline=soon()))
    owner.drain()


def test_deterministic_batches_are_not_halved() -> None:
    run = Recorder(fits=2)
    owner = batcher(run, max_batch=4, deterministic=True)
    with pytest.raises(OutOfMemory):
        asyncio.run(owner.submit(1, key="a", deadline=soon()))
    owner.drain()
    assert run.batches == [("a", [1, 1, 1, 1])]


def test_an_exception_for_one_item_is_raised_to_its_caller_only() -> None:
    owner = batcher(Recorder(), max_wait=0.05)

    async def main() -> list[int | BaseException]:
        requests = (owner.submit(item, key="a", deadline=soon()) for item in (12, 13, 14))
        return await asyncio.gather(*requests, return_exceptions=True)

    first, second, third = asyncio.run(main())
    owner.drain()
    assert (first, third) == (144, 196)
    assert isinstance(second, ValueError)


def test_wrong_number_of_results_is_an_error_and_the_owner_lives_on() -> None:
    owner = batcher(lambda key, items: items[1:] if key == "short" else list(items))
    with pytest.raises(Problem, match="0 results for 1 items"):
        asyncio.run(owner.submit(1, key="short", deadline=soon()))
    assert asyncio.run(owner.submit(2, key="fine", deadline=soon())) == 2
    owner.drain()


def test_drain_finishes_the_queue_and_refuses_the_rest() -> None:
    run = Recorder()
    owner = batcher(run, max_batch=1, max_wait=1.0)

    async def until_refused() -> None:
        """Until it drains, what is submitted waits behind the closed gate."""
        while True:
            with suppress(DeadlineExceeded):
                await owner.submit(4, key="a", deadline=soon(0.01))

    async def main() -> list[int]:
        run.gate.clear()
        task = asyncio.create_task(owner.submit_all([1, 2, 3], key="a", deadline=soon()))
        await run.hold()
        draining = asyncio.create_task(asyncio.to_thread(owner.drain))
        with pytest.raises(NotReady):
            await until_refused()
        run.gate.set()
        await draining
        return await task

    assert asyncio.run(main()) == [1, 4, 9]


def test_as_many_batches_run_at_the_same_time_as_the_policy_allows() -> None:
    together = threading.Barrier(2)

    def run(key: str, items: Sequence[int]) -> list[int]:
        together.wait(PATIENCE)  # passes only while two batches run
        return [item * item for item in items]

    owner = MicroBatcher(run, BatchPolicy(1, max_wait=0.0, at_once=2), BatchMetrics("test", CollectorRegistry()))

    async def main() -> list[int]:
        return await owner.submit_all([1, 2, 3, 4], key="a", deadline=soon())

    assert asyncio.run(main()) == [1, 4, 9, 16]
    owner.drain()


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


async def submit_as_of(owner: MicroBatcher[str, int, int], at: float, *items: int) -> list[int]:
    """Items that belong to work that started at a given time."""
    with work_started(at):
        return await owner.submit_all(list(items), key="a", deadline=soon())


async def until_waiting(registry: CollectorRegistry, count: int) -> None:
    """Return once so many items are queued."""
    queued = partial(registry.get_sample_value, "contrafact_waiting", {"service": "test"})
    await asyncio.to_thread(wait_for, lambda: queued() == count)


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


@pytest.mark.parametrize(("header", "moment"), [("12.5", 12.5), (None, None), ("soon", None), ("1e30", None)])
def test_a_moment_that_no_caller_can_know_counts_as_now(header: str | None, moment: float | None) -> None:
    before = time.time()
    at = start_time_from(header)
    assert at == moment if moment is not None else before <= at <= time.time()


def test_metrics_count_what_happened() -> None:
    registry = CollectorRegistry()
    owner = batcher(Recorder(fits=2), registry, max_batch=4, max_wait=0.05)
    asyncio.run(owner.submit_all([1, 2, 3, 4], key="a", deadline=soon()))
    owner.drain()
    text = generate_latest(registry).decode()
    for line in (
        'contrafact_batch_items_total{outcome="done",service="test"} 4.0',
        'contrafact_batch_items_total{outcome="halved",service="test"} 4.0',
        'contrafact_batch_size_count{service="test"} 3.0',
        'contrafact_batch_wait_seconds_count{service="test"} 4.0',
        'contrafact_waiting{service="test"} 0.0',
    ):
        assert line in text


@given(
    plans=st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from(["patient", "hasty", "leaves"]),
            st.integers(0, 4),
        ),
        min_size=1,
        max_size=40,
    ),
    fits=st.integers(1, 4),
)
@settings(deadline=None, max_examples=25)
def test_every_caller_is_answered_and_nothing_runs_twice_in_any_order_of_events(
    plans: list[tuple[str, str, int]], fits: int
) -> None:
    done: list[int] = []

    def run(key: str, items: Sequence[int]) -> list[int]:
        if len(items) > fits:
            raise OutOfMemory("too many")
        time.sleep(0.001)
        done.extend(items)
        return [-item for item in items]

    registry = CollectorRegistry()
    owner = batcher(run, registry, max_batch=4, max_wait=0.001, capacity=30)

    async def outcome_of(number: int, key: str, mood: str, delay: int) -> int | BaseException:
        await asyncio.sleep(delay / 1000)
        task = asyncio.ensure_future(
            owner.submit(number, key=key, deadline=soon(0.004 if mood == "hasty" else PATIENCE))
        )
        if mood == "leaves":
            await asyncio.sleep(0.002)
            task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    async def main() -> list[int | BaseException]:
        return await asyncio.gather(*(outcome_of(number, *plan) for number, plan in enumerate(plans)))

    outcomes = asyncio.run(main())
    owner.drain()
    assert len(set(done)) == len(done)
    for number, ((_, mood, _), outcome) in enumerate(zip(plans, outcomes, strict=True)):
        if isinstance(outcome, int):
            assert outcome == -number
            assert number in done
        else:
            allowed = {"patient": Overloaded, "hasty": (Overloaded, DeadlineExceeded)}
            assert isinstance(outcome, allowed.get(mood, (Overloaded, asyncio.CancelledError)))
    assert 'contrafact_waiting{service="test"} 0.0' in generate_latest(registry).decode()


def test_a_library_s_lack_of_memory_halves_the_batch() -> None:
    def run(key: str, items: Sequence[int]) -> list[int]:
        if len(items) > 1:
            raise RuntimeError("CUDA error: out of memory")
        return [item * item for item in items]

    owner = batcher(run, max_wait=0.05)
    assert asyncio.run(owner.submit_all([1, 2, 3], key="a", deadline=soon())) == [1, 4, 9]
    owner.drain()


def test_what_waits_behind_a_failure_of_the_device_is_refused_and_never_runs() -> None:
    ran: list[int] = []
    gate = threading.Event()

    def run(key: str, items: Sequence[int]) -> list[int]:
        ran.extend(items)
        assert gate.wait(PATIENCE)
        raise RuntimeError("CUDA error: unspecified launch failure")

    owner = batcher(run, max_batch=1)

    async def main() -> list[int | BaseException]:
        tasks = asyncio.gather(
            *(owner.submit(item, key="a", deadline=soon()) for item in (1, 2)), return_exceptions=True
        )
        await asyncio.to_thread(wait_for, lambda: len(ran) > 0)
        gate.set()
        return await tasks

    first, second = asyncio.run(main())
    with pytest.raises(NotReady):
        asyncio.run(owner.submit(3, key="a", deadline=soon()))
    owner.drain()
    assert (type(first), type(second)) == (DeviceFailed, NotReady)
    assert ran == [1]


def test_a_batcher_that_has_drained_says_so_once_and_leaves_the_gauge_to_the_others() -> None:
    registry, ended = CollectorRegistry(), threading.Event()
    metrics, recorder, other = BatchMetrics("test", registry), Recorder(), Recorder()
    calls: list[int] = []

    def on_stop() -> None:
        calls.append(len(recorder.batches))
        ended.set()

    async def scenario() -> None:
        policy = BatchPolicy(1, 0.0, at_once=2)
        stopping: MicroBatcher[str, int, int] = MicroBatcher(recorder, policy, metrics, on_stop=on_stop)
        staying: MicroBatcher[str, int, int] = MicroBatcher(other, BatchPolicy(1, 0.0), metrics)
        other.gate.clear()
        waiting = asyncio.create_task(staying.submit_all([1, 2], key="b", deadline=soon()))
        await other.hold()
        assert await stopping.submit_all([1, 2, 3], key="a", deadline=soon()) == [1, 4, 9]
        assert 'contrafact_waiting{service="test"} 1.0' in generate_latest(registry).decode()
        stopping.drain(0.0)
        assert await asyncio.to_thread(ended.wait, PATIENCE)
        other.gate.set()
        assert await waiting == [1, 4]
        staying.drain(PATIENCE)

    asyncio.run(scenario())
    assert calls == [3]
    assert 'contrafact_waiting{service="test"} 0.0' in generate_latest(registry).decode()
