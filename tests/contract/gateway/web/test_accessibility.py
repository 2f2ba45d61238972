"""Every page in headless Chromium: no violation of WCAG A or AA, no scrolling sideways, also on a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from gateway.report.build import build_report
from tests.support.browser import needs_browser, open_page, overflow, violations
from tests.support.compared_jobs import add_compared_jobs
from tests.support.gateway_under_test import Gateway, serve_gateway

pytestmark = needs_browser

PAGES = {
    "home": "/",
    "job": "/jobs/made/view",
    "compare": "/jobs/made/compare?model=weak&method=dillema&other_model=sound",
    "review": "/jobs/made/review",
    "report": "/jobs/made/report",
}


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that has two finished jobs and the report of one."""
    with serve_gateway(tmp_path_factory.mktemp("pages")) as gateway:
        add_compared_jobs(gateway)
        build_report(gateway.context.sessions, gateway.context.store, "made")
        yield str(gateway.client.base_url).rstrip("/")


@pytest.mark.slow
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_fits(name: str, dark: bool, phone: bool, base_url: str, browser: Browser) -> None:
    with open_page(browser, base_url + PAGES[name], phone=phone, dark=dark) as page:
        assert not violations(page)
        assert overflow(page) <= 0


def test_what_axe_refuses_is_reported(gateway: Gateway, browser: Browser) -> None:
    with open_page(browser, str(gateway.client.base_url)) as page:
        page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=\"/mark.svg\">')")
        assert any(line.startswith("image-alt") for line in violations(page))
