"""Threads of a model: the cores that the process may use, not those of the host."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from shared.service.threads import compute_threads, openmp_threads, usable_cores


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu": {"cpu.cfs_quota_us": "100000\n", "cpu.cfs_period_us": "100000\n"}}, 1),
    ],
)
def test_a_container_limit_bounds_the_cores(tmp_path: Path, files: dict[str, str | dict[str, str]], cores: int) -> None:
    write(tmp_path, files)
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpu.max": "max 100000\n"},
        {"cpu.max": "not a limit"},
        {"cpu": {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}},
        {"cpu.max": "100000000 100000\n"},
    ],
)
def test_without_a_limit_every_core_of_the_process_counts(
    tmp_path: Path, files: dict[str, str | dict[str, str]]
) -> None:
    write(tmp_path, files)
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_a_setting_comes_before_the_library_and_the_library_before_the_cores() -> None:
    assert compute_threads(3, 8) == 3
    assert compute_threads(0, 1) == 1, "OMP_NUM_THREADS=1 says so"
    assert compute_threads(0, 10_000) == usable_cores()


@pytest.mark.parametrize(
    ("value", "threads"),
    [("4", 4), (" 4 ", 4), ("6,2", 6), ("", None), ("0", None), ("-1", None), ("many", None), ("²", None)],
)
def test_openmp_threads_are_those_of_the_outermost_level(value: str, threads: int | None) -> None:
    assert openmp_threads({"OMP_NUM_THREADS": value}) == threads
    assert openmp_threads({}) is None


def write(folder: Path, files: Mapping[str, str | Mapping[str, str]]) -> None:
    for name, content in files.items():
        if not isinstance(content, str):
            (folder / name).mkdir()
            write(folder / name, content)
        else:
            (folder / name).write_text(content)
