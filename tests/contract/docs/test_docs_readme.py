"""The README is read to its end."""

from __future__ import annotations

from tests.support.paths import REPOSITORY

MOST_LINES = 120


def test_the_readme_is_short() -> None:
    lines = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES, "move details into a page of docs/ and link to it"
