"""How many images of an uploaded model run at once, by the time of earlier ones."""

from __future__ import annotations

import time

import numpy as np
import pytest

from evaluator_service.models_under_test.uploads import Pace
from shared.media.images import Pixels
from shared.service.batching import BatchTooLong


def pictures(number: int, side: int) -> list[Pixels]:
    return [np.zeros((side, side, 3), np.uint8)] * number


def run(pace: Pace, images: list[Pixels], seconds_each: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with pace.time_batch(images):
        now += seconds_each * len(images)


def runs(pace: Pace, images: list[Pixels]) -> bool:
    try:
        pace.check(images)
    except BatchTooLong:
        return False
    return True


def test_an_image_runs_alone_before_a_batch_of_its_size() -> None:
    pace = Pace(120)
    assert runs(pace, pictures(1, 64))
    assert not runs(pace, pictures(2, 64))


def test_a_batch_takes_half_of_its_limit_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(120)
    run(pace, pictures(1, 64), 20, monkeypatch)
    assert [number for number in range(1, 17) if runs(pace, pictures(number, 64))] == [1, 2, 3]
    assert [number for number in range(1, 17) if runs(pace, pictures(number, 32))] == [1, 2, 3]
    assert not runs(pace, [*pictures(1, 32), *pictures(1, 65)])


def test_the_latest_time_of_the_largest_images_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(120)
    run(pace, pictures(1, 64), 20, monkeypatch)  # warming up
    run(pace, pictures(2, 64), 2, monkeypatch)
    assert runs(pace, pictures(16, 64))
    run(pace, pictures(4, 8), 40, monkeypatch)
    assert runs(pace, pictures(16, 64))
    run(pace, pictures(1, 65), 30, monkeypatch)
    assert [number for number in range(1, 17) if runs(pace, pictures(number, 64))] == [1, 2]


def test_a_batch_that_fails_does_not_count() -> None:
    pace = Pace(120)
    with pytest.raises(ValueError, match="broken"), pace.time_batch(pictures(1, 64)):
        raise ValueError("broken")
    assert not runs(pace, pictures(2, 64))
