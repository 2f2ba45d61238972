"""Every page of measurements begins with what was measured and what came out."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

PAGES = sorted((REPOSITORY / "docs" / "measurements").glob("*.md"))
MOST_LINES = 5


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "index"], ids=lambda page: page.stem)
def test_the_page_begins_with_its_result_in_five_lines(page: Path) -> None:
    title, blank, *body = page.read_text(encoding="utf-8").splitlines()
    summary = list(takewhile(bool, body))
    assert title.startswith("# ")
    assert not blank
    assert 0 < len(summary) <= MOST_LINES
    assert all(line.startswith("* ") for line in summary), "one line for each result"
