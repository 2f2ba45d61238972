"""Batchers that share a processor take turns, the oldest work first."""

from __future__ import annotations

import threading
import time

import pytest

from shared.service.turns import ComputeTurns, start_time_from
from tests.support.work_site import wait_for

HANG_SECONDS = 120.0


class Holder:
    """A thread that takes a turn for work of an age, and gives it back when told."""

    def __init__(self, turns: ComputeTurns, started: float) -> None:
        self.computing, self._release = threading.Event(), threading.Event()
        self._turns, self._started = turns, started
        self._thread = threading.Thread(target=self._compute, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        self._release.set()
        self._thread.join(HANG_SECONDS)

    def _compute(self) -> None:
        with self._turns.turn(lambda: self._started):
            self.computing.set()
            self._release.wait(HANG_SECONDS)


def test_one_computes_at_a_time_and_the_next_turn_is_the_oldest_works() -> None:
    turns = ComputeTurns()
    first = Holder(turns, 2.0)
    assert first.computing.wait(HANG_SECONDS)
    young, old = Holder(turns, 9.0), Holder(turns, 1.0)
    wait_for(lambda: turns.waiting == 2)
    assert not young.computing.is_set()
    assert not old.computing.is_set()
    first.finish()
    assert old.computing.wait(HANG_SECONDS)
    assert not young.computing.is_set()
    old.finish()
    assert young.computing.wait(HANG_SECONDS)
    young.finish()


def test_two_compute_at_a_time_where_two_may() -> None:
    turns = ComputeTurns(at_once=2)
    first, second = Holder(turns, 5.0), Holder(turns, 6.0)
    assert first.computing.wait(HANG_SECONDS)
    assert second.computing.wait(HANG_SECONDS)
    young, old = Holder(turns, 9.0), Holder(turns, 1.0)
    wait_for(lambda: turns.waiting == 2)
    second.finish()
    assert old.computing.wait(HANG_SECONDS)
    assert not young.computing.is_set()
    first.finish()
    assert young.computing.wait(HANG_SECONDS)
    old.finish()
    young.finish()


def test_an_error_within_a_turn_ends_it() -> None:
    turns = ComputeTurns()
    try:
        with turns.turn(lambda: 1.0):
            raise ValueError("out of memory")
    except ValueError:
        pass
    after = Holder(turns, 2.0)
    assert after.computing.wait(HANG_SECONDS)
    after.finish()


@pytest.mark.parametrize(("header", "moment"), [("12.5", 12.5), (None, None), ("soon", None), ("1e30", None)])
def test_a_moment_that_no_caller_can_know_counts_as_now(header: str | None, moment: float | None) -> None:
    before = time.time()
    at = start_time_from(header)
    assert at == moment if moment is not None else before <= at <= time.time()
