"""The rule by which the files on the way of one image are counted."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from research.one_image import Way, way_of
from research.traced_image import FirstCalls

SOURCE = """
def first():
    return [second(value) for value in (1, 2)]

def second(value):
    return value
"""


def test_changes_of_file_are_openings_and_files_again_are_returns() -> None:
    files = ["gateway/api/jobs.py", "gateway/api/jobs.py", "gateway/jobs/submit.py", "gateway/api/jobs.py"]
    assert way_of(files) == Way(openings=3, returns=1, files=2, packages=2, functions=4)


def traced(calls: FirstCalls, module: ModuleType) -> None:
    sys.setprofile(calls.record)
    try:
        module.first()
        module.first()
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(("folder", "count"), [("gateway", 2), ("tests", 0)])
def test_each_function_of_the_product_counts_at_its_first_call(tmp_path: Path, folder: str, count: int) -> None:
    path = tmp_path / folder / "page.py"
    module = ModuleType("page")
    exec(compile(SOURCE, str(path), "exec"), module.__dict__)
    calls = FirstCalls(tmp_path)
    traced(calls, module)
    assert calls.files == [f"{folder}/page.py"] * count
    calls.restart()
    assert calls.files == []
    traced(calls, module)
    assert len(calls.files) == count
