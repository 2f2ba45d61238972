"""APFD, as its papers define it."""

from __future__ import annotations

import pytest

from benchmarks.priority import apfd


def test_apfd_is_the_papers_with_equal_costs_and_weighs_seconds_otherwise() -> None:
    places, n = [0, 3, 3], 10
    rothermel = 1 - sum(place + 1 for place in places) / (n * len(places)) + 1 / (2 * n)
    assert apfd(places, [2.0] * n) == pytest.approx(rothermel)
    assert apfd([1], [1.0, 1.0, 8.0]) == pytest.approx(1 - 1.5 / 10)
    assert apfd([1], [8.0, 1.0, 1.0]) == pytest.approx(1 - 8.5 / 10)
    with pytest.raises(ValueError, match="at least one fault"):
        apfd([], [1.0])
