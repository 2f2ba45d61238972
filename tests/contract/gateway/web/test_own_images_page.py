"""The page to mark own images: one picture and one question, without anything that sways the answer."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from tests.support.browser import needs_browser, open_page, overflow, violations
from tests.support.compared_findings import digests_of, write_compared_report
from tests.support.drawn_job import add_drawn_job, add_night_buses, serve_drawn_job

PAGE = "/jobs/drawn/review/own-images"


@pytest.fixture
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A gateway with a job `drawn`, whose scorer sees the buses at night, and a job `plain` without findings."""
    with serve_drawn_job(tmp_path_factory.mktemp("own"), per_class=14) as gateway:
        sessions, store = gateway.context.sessions, gateway.context.store
        add_night_buses(sessions, store, 4)
        nights = [digest for name, digest in digests_of(sessions).items() if "night" in name]
        write_compared_report(sessions, store, nights)
        add_drawn_job(sessions, store, "plain", per_class=1)
        yield gateway.client


def page(client: httpx.Client, path: str = PAGE) -> str:
    reply = client.get(path)
    assert reply.status_code == 200, reply.text
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=|(?:src|href)=\"https?:", reply.text)
    return html.unescape(reply.text)


def action_on(text: str) -> str:
    form = re.search(r'<form id="review" action="([^"]+)" data-next="([^"]+)"', text)
    assert form
    assert form[2] == PAGE
    return form[1]


@pytest.mark.slow
def test_it_shows_an_image_and_a_question_and_nothing_that_sways(client: httpx.Client) -> None:
    text = page(client)
    assert "Does this image show <em>night</em>?" in text
    digest = action_on(text).rpartition("/")[2]
    assert f"/images/{digest}" in text
    for hidden in ("night-bus", "correct", "predicted", ".png", "probability", "right", "wrong", "bus"):
        assert hidden not in text.partition("<main")[2], hidden
    for key in "ynu":
        assert f'data-key="{key}"' in text
    assert 'name="factor" value="weather"' in text
    assert page(client) == text, "until something is said of it"
    assert f'href="{PAGE}">Mark own images</a>' in page(client, "/jobs/drawn/view")


@pytest.mark.slow
def test_each_image_comes_once_and_one_can_go_back(client: httpx.Client) -> None:
    actions = []
    while "<form" in (text := page(client)):
        actions.append(action_on(text))
        body = {"factor": "weather", "value": "night", "shows": "no"}
        assert client.put(actions[-1], json=body).status_code == 200
        before = re.search(r'id="before" rel="prev" href="([^"]+)"', page(client))
        assert before
        previous = page(client, before[1])
        assert action_on(previous) == actions[-1]
        assert 'value="no" data-key="n" aria-pressed="true"' in previous
    assert len(actions) == len(set(actions)) == 4 + 8
    assert "All images are marked" in text
    assert 'data-report="/jobs/drawn/report"' in text


@pytest.mark.slow
def test_a_job_without_compared_findings_says_what_it_needs(client: httpx.Client) -> None:
    assert "Nothing to mark yet" in page(client, "/jobs/plain/review/own-images")
    assert "Mark own images" not in page(client, "/jobs/plain/view")
    assert client.get("/jobs/none/review/own-images").status_code == 404


@pytest.mark.slow
@needs_browser
def test_keys_mark_and_go_back(client: httpx.Client, browser: Browser) -> None:
    """Each answer is one key; the mark that a key stores is the one that the API has."""
    address = str(client.base_url).rstrip("/")
    with open_page(browser, address + PAGE) as tab:
        assert not violations(tab)
        shown = []
        for key in "ynu":
            shown.append(tab.locator("#review").get_attribute("action"))
            with tab.expect_navigation():
                tab.keyboard.press(key)
        with tab.expect_navigation():
            tab.keyboard.press("b")
        assert tab.locator("#review").get_attribute("action") == shown[-1]
        assert tab.locator("button[aria-pressed=true]").get_attribute("value") == "unsure"
    with open_page(browser, address + PAGE, phone=True, dark=True) as tab:
        assert not violations(tab)
        assert overflow(tab) <= 0
    (value,) = client.get("/jobs/drawn/own-images").json()["values"]
    stored = {image["image"]: [mark["shows"] for mark in image["marks"]] for image in value["images"]}
    images = [(action or "").rpartition("/")[2] for action in shown]
    assert [stored[image] for image in images] == [["yes"], ["no"], ["unsure"]]
