"""Pages in headless Chromium: what a test drives, and what axe-core finds wrong on it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

# The headless shell starts a page in a quarter of the CPU time of the whole browser.
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _BROWSERS)), None)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"),
    reason="no Chromium is installed (apt-get install chromium-headless-shell)",
)
QUIET = ("--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update")
WIDE = {"width": 1400, "height": 900}
PHONE = {"width": 390, "height": 844}
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}


@contextmanager
def headless() -> Iterator[Browser]:
    """Headless Chromium, which ends with the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *QUIET])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Browser, address: str, *, phone: bool = False, dark: bool = False) -> Iterator[Page]:
    """A page of its own session at `address`; an exception in a script of the page fails the test."""
    context = browser.new_context(
        viewport=PHONE if phone else WIDE,  # type: ignore[arg-type]
        color_scheme="dark" if dark else "light",
    )
    errors: list[Exception] = []
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(error))
    try:
        page.goto(address)
        yield page
        assert not errors, errors
    finally:
        context.close()


def violations(page: Page) -> list[str]:
    """What breaks WCAG 2.2 A or AA on the page as it stands, one line for each element."""
    report: dict[str, Any] = Axe().run(page, options=RULES).response
    return [
        f"{rule['id']}: {rule['help']}: {node['html'][:200]}" for rule in report["violations"] for node in rule["nodes"]
    ]


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    width: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width
