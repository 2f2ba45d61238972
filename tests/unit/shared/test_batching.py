"""The micro-batcher: order, fairness, dropping, capacity, drain, metrics."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from shared.problems import DeadlineExceeded, NotReady, OutOfMemory, Overloaded
from shared.service import batching
from shared.service.batch_metrics import BatchMetrics
from shared.service.batching import BatchPolicy, BatchQueue, Entry, MicroBatcher
from tests.support.batching import PATIENCE, Recorder, batcher, soon


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
    owner = batcher(run, max_batch=4, max_wait=10 * PATIENCE)  # a batch that waits for it misses its deadline

    async def main() -> None:
        await asyncio.gather(*(owner.submit(item, key="a", deadline=soon()) for item in range(4)))

    asyncio.run(main())
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
            others = {"patient": Overloaded, "hasty": DeadlineExceeded, "leaves": asyncio.CancelledError}
            assert isinstance(outcome, Overloaded | others[mood])
    assert 'contrafact_waiting{service="test"} 0.0' in generate_latest(registry).decode()


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


TAKES = {"edit": 10.0, "mask": 0.0}


def test_what_would_come_too_late_is_refused_at_once_and_tried_again_when_there_is_time() -> None:
    async def main() -> None:
        queue = BatchQueue[str, int, int](BatchPolicy(), BatchMetrics("test", CollectorRegistry()))

        def enter(key: str, seconds: float, started: float = 1.0, running: float = 0.0) -> Entry[str, int, int]:
            loop = asyncio.get_running_loop()
            entry = Entry[str, int, int](key, 1, soon(seconds), loop.create_future(), loop, started)
            queue.enter([entry], TAKES.__getitem__, running)
            return entry

        enter("edit", 5)  # nothing is before it: the estimate may be wrong
        enter("edit", 25)
        with pytest.raises(Overloaded) as refusal:
            enter("edit", 25)
        assert 4 < (refusal.value.retry_after or 0) < 6
        with pytest.raises(Overloaded):
            enter("edit", 35, running=6.0)
        enter("mask", 25)
        enter("edit", 25, started=0.0)  # older work goes first

    asyncio.run(main())


def test_a_model_never_starts_what_would_come_too_late_while_others_wait() -> None:
    async def main() -> None:
        queue = BatchQueue[str, int, int](BatchPolicy(), BatchMetrics("test", CollectorRegistry()))
        loop = asyncio.get_running_loop()
        late, later, in_time = (
            Entry[str, int, int]("edit", 1, soon(seconds), loop.create_future(), loop, 1.0) for seconds in (5, 6, 30)
        )
        for entry in (late, in_time):
            queue.enter([entry], lambda _: 0.0, 0.0)
        assert queue.take(TAKES.__getitem__) == [in_time]
        with pytest.raises(DeadlineExceeded):
            await late.future
        queue.enter([later], lambda _: 0.0, 0.0)
        assert queue.take(TAKES.__getitem__) == [later], "the estimate may be wrong"

    asyncio.run(main())


def test_a_batch_is_as_large_as_ends_before_the_deadlines_of_its_items() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def batch_of(*seconds: float, **policy: bool) -> int:
            queue = BatchQueue[str, int, int](BatchPolicy(4, **policy), BatchMetrics("test", CollectorRegistry()))
            for left in seconds:
                entry = Entry[str, int, int]("edit", 1, soon(left), loop.create_future(), loop, 1.0)
                queue.enter([entry], lambda _: 0.0, 0.0)
            return len(queue.take(TAKES.__getitem__))

        assert batch_of(45, 45, 45, 45) == 4
        assert batch_of(35, 35, 35, 35) == 3
        assert batch_of(45, 45, 15, 45) == 2
        assert batch_of(15, 25) == 1
        assert batch_of(5, 5) == 1, "the estimate may be wrong"
        assert batch_of(45, 45, 45, deterministic=True) == 3
        assert batch_of(35, 35, 45, deterministic=True) == 1, "a padded batch takes as long as a full one"

    asyncio.run(main())


def test_one_outlier_changes_no_estimate_and_a_wrong_one_fades(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    durations = batching.Durations()
    assert durations.of("edit") == 0.0
    for seconds in (900.0, 2.0, 3.0):  # the first one compiles
        durations.add("edit", seconds)
    durations.add("edit", 800.0)
    assert durations.of("edit") == 3.0
    durations.add("mask", 700.0)
    now += 3 * batching.HALF_LIFE_SECONDS
    assert durations.of("mask") < 100.0
    for number in range(batching.KINDS):
        durations.add(number, 1.0)
    assert durations.of("edit") == 0.0
