"""Threads that tests start in the background end with their block, also when it fails."""

from __future__ import annotations

import threading

import pytest

from tests.support.threads import background, run_together


@pytest.mark.parametrize("fails", [False, True])
def test_threads_end_with_the_block(fails: bool) -> None:
    stopping, ended = threading.Event(), threading.Event()

    def loop() -> None:
        stopping.wait(60)
        ended.set()

    def block() -> None:
        with background(loop, release=stopping.set):
            assert not ended.is_set()
            assert not fails, "as any assertion of a test"

    if fails:
        with pytest.raises(AssertionError):
            block()
    else:
        block()
    assert ended.is_set()


def test_targets_run_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=60)
    run_together(*[barrier.wait] * 3)
    assert not barrier.broken
