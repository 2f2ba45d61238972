"""The page of raters in headless Chromium: rated by keys, without scripts, on a phone; no violation of WCAG A or AA."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import needs_browser, open_page, overflow, violations
from tests.support.drawn_job import serve_drawn_job
from tests.support.gateway_under_test import Gateway
from tests.support.study_raters import invite, make_study

pytestmark = needs_browser
LINK_REFUSED = "/rate/cf_rate_unknown"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a finished job `drawn`."""
    with serve_drawn_job(tmp_path_factory.mktemp("raters"), per_class=2) as served:
        yield served


def new_link(gateway: Gateway, **request: object) -> str:
    """The address of a new rater's page."""
    study = make_study(gateway, {"per_method": 2, "controls": 0, "attention": 0, **request})
    return str(gateway.client.base_url).rstrip("/") + str(invite(gateway, study["id"])[0]["link"])


@pytest.mark.slow
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_accessible_and_fits(gateway: Gateway, browser: Browser, dark: bool, phone: bool) -> None:
    link = new_link(gateway, questions="lance", per_method=1)
    with open_page(browser, link, phone=phone, dark=dark) as page:
        assert not violations(page)
        assert overflow(page) <= 0
        for name, answer in {"realism": "4", "edit_success": "3", "fidelity": "5"}.items():
            page.locator(f'[name="{name}"][value="{answer}"]').check()
        for name in ("label_kept", "ethics"):
            page.locator(f'[name="{name}"][value="unsure"]').check()
        assert not violations(page)
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Thank you")
        assert not violations(page)
    with open_page(browser, f"{gateway.client.base_url}".rstrip("/") + LINK_REFUSED, phone=phone, dark=dark) as page:
        expect(page.locator("main")).to_contain_text("this link is not valid")
        assert not violations(page)


def test_an_attention_check_says_what_to_answer(gateway: Gateway, browser: Browser) -> None:
    with open_page(browser, new_link(gateway, per_method=1, attention=1)) as page:
        for _ in range(2):
            expect(page.locator("fieldset.next legend")).to_contain_text("still right")
            text = page.locator("main").inner_text()
            if "Attention check" in text:
                assert "Cannot tell" in text
                assert not violations(page)
            for key in ("u", "u", "Enter"):
                page.keyboard.press(key)
            expect(page.locator(":checked")).to_have_count(0)
        expect(page.get_by_role("heading", level=1)).to_contain_text("Thank you")


def test_keys_answer_save_and_go_back(gateway: Gateway, browser: Browser) -> None:
    with open_page(browser, new_link(gateway)) as page:
        expect(page.locator("fieldset.next legend")).to_contain_text("still right")
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_contain_text("0 of 2 pairs")
        page.keyboard.press("y")
        expect(page.locator("fieldset.next legend")).to_contain_text("realistic")
        page.keyboard.press("n")
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_contain_text("1 of 2 pairs")
        expect(page.locator("fieldset.next")).to_have_count(1)
        page.keyboard.press("b")
        expect(page.locator('[name="label_kept"][value="yes"]')).to_be_checked()
        expect(page.locator('[name="realistic"][value="no"]')).to_be_checked()
        page.locator('[name="realistic"][value="unsure"]').check()
        page.keyboard.press("Enter")
        expect(page.locator("fieldset.next legend")).to_contain_text("still right")
        for key in ("u", "y", "Enter"):
            page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1)).to_contain_text("Thank you")


def test_saved_answers_are_changed_by_key(gateway: Gateway, browser: Browser) -> None:
    with open_page(browser, new_link(gateway, questions="lance", per_method=1)) as page:
        for key in ("4", "4", "4", "y", "n", "Enter"):
            page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1)).to_contain_text("Thank you")
        page.wait_for_load_state()  # the keys work when the scripts of the page have run
        page.keyboard.press("b")
        page.wait_for_load_state()
        expect(page.locator("fieldset.next legend")).to_contain_text("How real")
        page.keyboard.press("2")
        expect(page.locator('[name="realism"][value="2"]')).to_be_checked()
        page.keyboard.press("n")
        expect(page.locator('[name="label_kept"][value="no"]')).to_be_checked()
        page.locator('[name="fidelity"]:checked').focus()
        page.keyboard.press("1")
        expect(page.locator('[name="fidelity"][value="1"]')).to_be_checked()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Thank you")
        page.wait_for_load_state()  # the keys work when the scripts of the page have run
        page.keyboard.press("b")
        checked = page.locator(":checked")
        expect(checked).to_have_count(5)
        assert [box.get_attribute("value") for box in checked.all()] == ["2", "4", "1", "no", "no"]


def test_the_page_works_without_scripts(gateway: Gateway, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    try:
        page: Page = context.new_page()
        page.goto(new_link(gateway, per_method=1))
        page.locator('[name="label_kept"][value="yes"]').check()
        page.get_by_role("button", name="Save").click()
        expect(page.locator("main")).to_contain_text("0 of 1 pairs")
        page.locator('[name="realistic"][value="no"]').check()
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Thank you")
        page.get_by_role("link", name="Change your last answer").click()
        expect(page.locator('[name="realistic"][value="no"]')).to_be_checked()
    finally:
        context.close()
