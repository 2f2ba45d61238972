"""The generated pages of the reference are current."""

from __future__ import annotations

import pytest

from docs.generate import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_the_generated_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run `python -m docs.generate`"
