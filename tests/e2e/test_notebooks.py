"""The notebooks of the documentation run, each in a kernel and folder of its own, and come to what they show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nbformat import NotebookNode

from docs.execute import code_cells, execute, notebook_paths, printed_text, read_notebook

WEAKNESS = "`bus` at night"


def output_kinds(notebook: NotebookNode) -> list[list[str]]:
    return [[output.output_type for output in cell.outputs] for cell in code_cells(notebook)]


def regained(text: str) -> int:
    """By how many points the release beats its baseline on buses at night."""
    (points,) = re.findall(r"`bus` at night \(dillema\): .*?([+−]?\d+) points", text)
    return int(points.replace("−", "-"))


def executed(name: str, folder: Path) -> NotebookNode:
    """The notebook with fresh outputs, of the same kinds as those that are stored."""
    path = notebook_paths()[name]
    fresh = execute(path, folder)
    assert output_kinds(fresh) == output_kinds(read_notebook(path)), "run `make notebooks`"
    return fresh


@pytest.mark.slow
def test_ten_lines_find_the_planted_weakness(tmp_path: Path) -> None:
    assert WEAKNESS in printed_text(executed("first-finding", tmp_path))
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_a_method_of_one_s_own_finds_it(tmp_path: Path) -> None:
    assert WEAKNESS in printed_text(executed("own-method", tmp_path))


@pytest.mark.slow
def test_a_repaired_model_does_better_on_the_suite(tmp_path: Path) -> None:
    text = printed_text(executed("repair", tmp_path))
    assert WEAKNESS in text
    assert regained(text) > 30
    assert (tmp_path / "repaired.tar").stat().st_size > 100_000
