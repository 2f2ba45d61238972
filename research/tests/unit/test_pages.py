"""The generated sections of `research/docs` are current; counts are right at their bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from research import counts
from research.pages import GENERATED, PAGES


@pytest.mark.parametrize("name", GENERATED)
def test_the_generated_sections_are_current(name: str) -> None:
    assert (PAGES / name).read_text(encoding="utf-8") == GENERATED[name](), "run `python -m research.pages`"


def test_a_function_is_long_from_36_lines_on_and_tests_and_migrations_are_not_counted(tmp_path: Path) -> None:
    code = "".join(f"def lines_{lines}():\n" + "    pass\n" * (lines - 1) for lines in (35, 36))
    for folder in ("package", "package/migrations", "package/tests", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(code, encoding="utf-8")
    files = list(counts.python_files(tmp_path))
    assert [path.relative_to(tmp_path).as_posix() for path in files] == ["package/__init__.py"]
    assert counts.long_functions(files) == [("lines_36", 36)]


def test_a_public_class_name_in_two_modules_is_repeated(tmp_path: Path) -> None:
    for module in ("first", "second"):
        text = f"class Shared:\n    class Inner: ...\nclass _Private: ...\nclass Only{module.title()}: ...\n"
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    assert counts.repeated_classes(tmp_path) == ["Shared"]


def test_words_of_hand_written_pages_leave_out_generated_pages(tmp_path: Path) -> None:
    for folder in ("how-to", "reference"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "page.md").write_text("# Title\n\nthree more words\n", encoding="utf-8")
    assert counts.hand_written(["reference/page.md"], tmp_path) == 5
