"""What a micro-batcher does when a batch fails: halving, refusals, failures of one item or of the device."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.problems import DeviceFailed, InvalidInput, ModelStopped, NotFinite, NotReady, OutOfMemory, Problem
from shared.service.batching import BatchTooLong
from tests.support.batching import PATIENCE, Recorder, batcher, soon, submit_together
from tests.support.work_site import wait_for


@given(items=st.lists(st.integers(100, 999), min_size=1, max_size=9), fits=st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_out_of_memory_halves_until_it_fits(items: list[int], fits: int) -> None:
    run = Recorder(fits)
    owner = batcher(run, max_batch=9, max_wait=0.05)
    replies = asyncio.run(owner.submit_all(items, key="a", deadline=soon()))
    owner.drain()
    assert replies == [item * item for item in items]
    assert [item for _, batch in run.batches if len(batch) <= fits for item in batch] == items


def test_a_batch_that_would_take_too_long_is_halved_until_it_may_run() -> None:
    batches: list[int] = []

    def run(_: str, items: Sequence[int]) -> list[int]:
        if len(items) > 2 * len(batches) + 1:
            raise BatchTooLong("not timed yet")
        batches.append(len(items))
        return [item * item for item in items]

    owner = batcher(run, max_batch=8)
    replies = asyncio.run(owner.submit_all(range(8), key="a", deadline=soon()))
    owner.drain()
    assert replies == [item * item for item in range(8)]
    assert batches == [1, 1, 2, 4]


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

    first, second, third = asyncio.run(submit_together(owner, 12, 13, 14))
    owner.drain()
    assert (first, third) == (144, 196)
    assert isinstance(second, ValueError)


@pytest.mark.parametrize("problem", [InvalidInput("too thin"), NotFinite("NaN")])
@pytest.mark.parametrize("deterministic", [False, True])
def test_an_item_that_fails_its_batch_fails_alone(problem: Problem, deterministic: bool) -> None:
    batches: list[int] = []

    def run(key: str, items: Sequence[int]) -> list[int]:
        batches.append(len(items))
        if 13 in items:
            raise problem
        return [item * item for item in items]

    owner = batcher(run, max_wait=0.5, deterministic=deterministic)

    first, second, third = asyncio.run(submit_together(owner, 12, 13, 14))
    owner.drain()
    assert (first, second, third) == (144, problem, 196)
    assert len(batches) == 4
    assert set(batches[1:]) == {4 if deterministic else 1}


def test_a_model_that_was_stopped_does_not_run_again() -> None:
    batches: list[int] = []

    def run(key: str, items: Sequence[int]) -> list[int]:
        batches.append(len(items))
        raise ModelStopped("it took too long")

    owner = batcher(run, max_wait=0.5)
    with pytest.raises(ModelStopped):
        asyncio.run(owner.submit_all([1, 2, 3], key="a", deadline=soon()))
    owner.drain()
    assert batches == [3]


def test_wrong_number_of_results_is_an_error_and_the_owner_lives_on() -> None:
    owner = batcher(lambda key, items: items[1:] if key == "short" else list(items))
    with pytest.raises(Problem, match="0 results for 1 items"):
        asyncio.run(owner.submit(1, key="short", deadline=soon()))
    assert asyncio.run(owner.submit(2, key="fine", deadline=soon())) == 2
    owner.drain()


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
