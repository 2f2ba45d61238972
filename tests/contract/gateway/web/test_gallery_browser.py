"""Gallery, map, image page and notes in headless Chromium: accessible, and driven by keys and pointer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from gateway.web import gallery
from tests.support.browser import needs_browser, open_page, overflow, violations
from tests.support.drawn_job import serve_drawn_job
from tests.support.gateway_under_test import serve_gateway
from tests.support.recorded_embeddings import record_embeddings
from tests.support.segmented_job import add_segmented_job

pytestmark = needs_browser

PAGES = {
    "gallery": "/jobs/drawn/gallery",
    "gallery-slider": "/jobs/drawn/gallery?show=slider&class=bus&model=night-bus&flipped=true",
    "map": "/jobs/drawn/map?class=bus",
    "image": "",
    "notes": "/jobs/drawn/notes",
}


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_drawn_job(tmp_path_factory.mktemp("gallery"), per_class=14) as gateway:
        record_embeddings(gateway, "drawn", "night")
        first = gateway.client.get("/jobs/drawn/results?limit=1&verdict=accepted").json()["counterfactuals"][0]
        PAGES["image"] = f"/jobs/drawn/pairs/{first['id']}"
        yield str(gateway.client.base_url).rstrip("/")


@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_fits(name: str, phone: bool, base_url: str, browser: Browser) -> None:
    with open_page(browser, base_url + PAGES[name], phone=phone, dark=phone) as page:
        assert not violations(page)
        assert overflow(page) <= 0


def left(page: Page, selector: str) -> float:
    """How much of the source image is shown over the counterfactual, in percent."""
    share: str = page.eval_on_selector(selector, "stage => getComputedStyle(stage).getPropertyValue('--share')")
    return float(share.removesuffix("%"))


def test_the_gallery_is_driven_by_keys(base_url: str, browser: Browser) -> None:
    with open_page(browser, base_url + "/jobs/drawn/gallery?class=bus") as page:
        page.keyboard.press("j")
        page.keyboard.press("j")
        second = page.locator(".card h3 a").nth(1)
        expect(second).to_be_focused()
        page.keyboard.press("3")
        page.wait_for_url("**/gallery?class=bus&show=blink")
        source = page.locator(".card .reference").first
        expect(source).to_be_hidden()
        page.keyboard.press("b")
        expect(source).to_be_visible()
        page.keyboard.press("b")
        expect(source).to_be_hidden()
        page.keyboard.press("n")
        page.wait_for_url("**cursor=**")
        page.keyboard.press("p")
        page.wait_for_url("**/gallery?class=bus&show=blink")


def test_the_slider_moves_by_keys_and_pointer(base_url: str, browser: Browser) -> None:
    with open_page(browser, base_url + PAGES["image"]) as page:
        assert left(page, ".stage") == 50
        page.keyboard.press("ArrowRight")
        assert left(page, ".stage") == 55
        box = page.locator(".stage").bounding_box()
        assert box
        page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 20)
        assert left(page, ".stage") == pytest.approx(10, abs=1)
        page.keyboard.press("4")
        page.wait_for_url("**show=difference")
        expect(page.locator(".stage .difference")).to_be_visible()
        page.keyboard.press("Escape")
        page.wait_for_url("**/gallery?**")


def test_keys_work_while_the_slider_is_focused(base_url: str, browser: Browser) -> None:
    with open_page(browser, base_url + "/jobs/drawn/gallery?show=slider") as page:
        slider = page.locator("#slider")
        slider.focus()
        page.keyboard.press("ArrowRight")
        expect(slider).to_have_value("51")
        page.keyboard.press("j")
        expect(page.locator(".card h3 a").first).to_be_focused()
        slider.focus()
        page.keyboard.press("4")
        page.wait_for_url("**show=difference")


@pytest.mark.slow
@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_the_counts_of_a_large_job_come_after_its_page(
    base_url: str, browser: Browser, monkeypatch: pytest.MonkeyPatch, scripts: bool
) -> None:
    monkeypatch.setattr(gallery, "COUNTED_AT_ONCE", 0)
    address = f"{base_url}/jobs/drawn/gallery?class=car&show=slider&verdict={'accepted' if scripts else 'counted'}"
    assert 'id="count"' in httpx.get(address).text
    assert 'class="count"' not in httpx.get(address).text
    context = browser.new_context(java_script_enabled=scripts)
    try:
        page = context.new_page()
        page.goto(address)
        if not scripts:
            expect(page.locator(".card").first).to_be_visible()
            page.get_by_role("link", name="Count the images of each filter").click()
        number = len(
            httpx.get(address.replace("gallery", "results").replace("show=slider&", "limit=200&")).json()[
                "counterfactuals"
            ]
        )
        expect(page.get_by_role("status").first).to_contain_text(f"{number} counterfactuals")
        expect(page.locator(".chip .count").first).to_be_visible()
        expect(page.locator("#count")).to_have_count(0)
        chosen = page.get_by_role("link", name="car").first
        expect(chosen).to_have_attribute("aria-current", "true")
        assert "counts=" not in (chosen.get_attribute("href") or "")
    finally:
        context.close()


def test_the_counts_of_a_large_jobs_map_come_after_its_page(
    base_url: str, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "COUNTED_AT_ONCE", 0)
    address = f"{base_url}/jobs/drawn/map?class=boat&verdict=counted"
    sent = httpx.get(address).text
    assert "Count the images of each filter" in sent
    assert 'class="count"' not in sent
    with open_page(browser, address) as page:
        listed = httpx.get(address.replace("/map", "/results") + "&limit=200").json()["counterfactuals"]
        expect(page.get_by_role("status").first).to_contain_text(f"of {len(listed)} counterfactuals")
        expect(page.locator(".chip .count").first).to_be_visible()
        expect(page.locator("#count")).to_have_count(0)
        assert not violations(page)


def test_the_map_is_walked_by_arrows_and_shows_the_image(base_url: str, browser: Browser) -> None:
    with open_page(browser, base_url + "/jobs/drawn/map") as page:
        first = page.locator("#map a").first
        first.focus()
        expect(page.locator("#preview img").first).to_be_visible()
        moved = False
        for key in ("ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"):
            page.keyboard.press(key)
            moved = moved or not first.evaluate("link => link === document.activeElement")
        assert moved
        assert page.locator("#map a[tabindex='0']").count() <= 1
        page.keyboard.press("Enter")
        page.wait_for_url("**/pairs/**")


def in_view(page: Page, selector: str) -> bool:
    """Whether the whole element is inside the window."""
    inside: bool = page.eval_on_selector(
        selector,
        """element => {
          const box = element.getBoundingClientRect();
          return box.width > 0 && box.top >= 0 && box.bottom <= innerHeight;
        }""",
    )
    return inside


def test_the_preview_of_the_map_is_in_view(base_url: str, browser: Browser) -> None:
    with open_page(browser, base_url + "/jobs/drawn/map") as page:
        page.locator("#map a").last.hover()
        expect(page.locator("#preview img").last).to_be_visible()
        assert in_view(page, "#preview")


def test_the_preview_of_a_segmenter_states_overlaps(tmp_path: Path, browser: Browser) -> None:
    with serve_gateway(tmp_path) as gateway:
        add_segmented_job(gateway.context.sessions, gateway.context.store)
        record_embeddings(gateway, "segmented", "night")
        with open_page(browser, f"{gateway.client.base_url}/jobs/segmented/map") as page:
            page.locator("#map a").first.hover()
            expect(page.locator("#preview p")).to_contain_text(re.compile(r"segmenter: mIoU \d+ % → mIoU \d+ %"))


@pytest.mark.slow
def test_the_first_tap_on_the_map_previews_and_the_second_opens(base_url: str, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    try:
        page = context.new_page()
        page.goto(base_url + "/jobs/drawn/map")
        point = page.locator("#map a").last
        point.scroll_into_view_if_needed()
        box = point.locator(".point").bounding_box()
        assert box
        x, y = box["x"] + box["width"] / 2 + 10, box["y"] + box["height"] / 2  # beside its mark
        page.touchscreen.tap(x, y)
        expect(page.locator("#preview img").last).to_be_visible()
        assert in_view(page, "#preview")
        assert overflow(page) <= 0
        assert page.url.endswith("/map")
        page.touchscreen.tap(x, y)
        page.wait_for_url("**/pairs/**")
    finally:
        context.close()


@pytest.mark.slow
def test_pages_work_without_scripts(base_url: str, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(f"{base_url}/jobs/drawn/gallery?show=slider")
        expect(page.locator(".card .reference").first).to_be_visible()
        expect(page.locator(".card .counterfactual").first).to_be_visible()
        expect(page.locator("#slider")).to_be_hidden()
        page.get_by_role("link", name="bus").first.click()
        assert "class=bus" in page.url
        page.goto(f"{base_url}/jobs/drawn/notes")
        form = page.locator("form").first
        form.get_by_label("Status").select_option("artefact")
        form.get_by_label("Note").fill("the bus is drawn too dark\nlook again")
        form.get_by_role("button", name="Save").click()
        expect(page.locator(".tag").first).to_have_text("artefact")
        expect(page.locator("textarea").first).to_have_value("the bus is drawn too dark\nlook again")
        page.goto(f"{base_url}/jobs/drawn/view")
        expect(page.locator(".noted")).to_contain_text("the bus is drawn too dark")
    finally:
        context.close()
