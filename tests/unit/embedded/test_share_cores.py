"""The embedded services share the cores that the process may use, or the threads that it is allowed."""

from __future__ import annotations

import pytest

from embedded import run
from shared.service import threads
from shared.service.settings import ServiceSettings

CORES = 8


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (2, 4)),
        ({"OMP_NUM_THREADS": "1"}, (1, 1)),
        ({"OMP_NUM_THREADS": "3"}, (2, 1)),
        ({"OMP_NUM_THREADS": "6,2"}, (2, 3)),
        ({"OMP_NUM_THREADS": "64"}, (2, 4)),
        ({"OMP_NUM_THREADS": "many"}, (2, 4)),
        ({"OMP_NUM_THREADS": "1", "CONTRAFACT_BATCHES_AT_ONCE": "2"}, (2, 1)),
        ({"OMP_NUM_THREADS": "1", "CONTRAFACT_THREADS": "3"}, (2, 3)),
        ({"CONTRAFACT_BATCHES_AT_ONCE": "1"}, (1, 8)),
    ],
)
def test_openmp_bounds_the_threads_of_all_batches_unless_ours_are_set(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: tuple[int, int]
) -> None:
    for name in ("OMP_NUM_THREADS", "CONTRAFACT_THREADS", "CONTRAFACT_BATCHES_AT_ONCE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for module in (run, threads):
        monkeypatch.setattr(module, "usable_cores", lambda: CORES)
    assert run.share_cores(ServiceSettings()) == expected
