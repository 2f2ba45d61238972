"""The browser of tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.browser import headless


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Headless Chromium. While it runs, nothing in this folder can call `asyncio.run`: Playwright's loop is running."""
    with headless() as browser:
        yield browser
