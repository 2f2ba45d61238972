"""Budgets: usage stays within the limit, and nothing waits for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from shared.media.admission import Budget, Spool
from shared.problems import NotReady
from tests.support.threads import background
from tests.support.work_site import wait_for


def test_work_in_progress_stays_within_the_budget() -> None:
    budget, lock, now, most = Budget(lambda: 100), threading.Lock(), 0, 0

    def work(size: int) -> None:
        nonlocal now, most
        with budget.admit(size):
            with lock:
                now += size
                most = max(most, now)
            for _ in range(1_000):
                pass
            with lock:
                now -= size

    sizes = [100, 60, 30, 20, 10] * 40
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, sizes))
    assert now == 0
    assert most <= 100


def test_work_larger_than_the_budget_runs_alone_and_failed_work_gives_its_share_back() -> None:
    budget = Budget(lambda: 10)
    with pytest.raises(KeyError), budget.admit(1_000):
        raise KeyError
    with budget.admit(10):
        pass


def test_small_work_does_not_overtake_large_work() -> None:
    budget = Budget(lambda: 10)
    order: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with budget.admit(5):
            inside.set()
            leave.wait(30)

    def later(name: str, size: int) -> None:
        with budget.admit(size):
            order.append(name)

    with background(first, release=leave.set):
        assert inside.wait(30)
        with background(partial(later, "large", 10), release=leave.set):
            wait_for(lambda: budget.waiting == 1)
            with background(partial(later, "small", 5)):
                leave.set()
    assert order == ["large", "small"]


def test_work_that_is_ended_while_it_waits_leaves_the_line() -> None:
    budget, ended = Budget(lambda: 10), threading.Event()

    def refuse_ended() -> None:
        if ended.is_set():
            raise KeyError

    def wait() -> None:
        with pytest.raises(KeyError), budget.admit(1, refuse_ended):
            pass

    with budget.admit(10), background(wait, release=ended.set):
        wait_for(lambda: budget.waiting == 1)
        ended.set()
        wait_for(lambda: budget.waiting == 0)
    with budget.admit(10):
        pass


def test_uploads_beyond_the_spool_are_refused_until_others_end() -> None:
    spool = Spool(100)
    with spool.counting() as add:
        add(80)
        with spool.counting() as other, pytest.raises(NotReady) as refusal:
            other(30)
        with pytest.raises(NotReady):
            spool.refuse_without_room(21)
        spool.refuse_without_room(20)
    assert refusal.value.retry_after
    with spool.counting() as add:
        add(100)
