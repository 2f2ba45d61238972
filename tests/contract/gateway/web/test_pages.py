"""The web pages of a running gateway: content, filters, links, and the content security policy."""

from __future__ import annotations

import hashlib
import html
import io
import re
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from PIL import Image

from shared.media.images import encode
from tests.support.drawn_job import add_drawn_job, serve_drawn_job


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A gateway with one finished job `drawn` and one `running` that has no report."""
    with serve_drawn_job(tmp_path_factory.mktemp("pages"), per_class=14) as gateway:
        add_drawn_job(gateway.context.sessions, gateway.context.store, "running", per_class=1, state="running")
        yield gateway.client


def page(client: httpx.Client, path: str) -> str:
    reply = client.get(path)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/html")
    assert "'self'" in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=|(?:src|href)=\"https?:", reply.text)
    return html.unescape(reply.text)


def pairs(text: str) -> list[str]:
    return re.findall(r'href="(/jobs/drawn/pairs/[^"]+)"', text)


@pytest.mark.parametrize(
    ("path", "status"),
    [("/jobs/gone/view", 404), ("/jobs/gone/report", 404), ("/nowhere", 404), ("/jobs/drawn/view?klass=car", 422)],
)
def test_browsers_get_a_page_in_place_of_a_problem_document(client: httpx.Client, path: str, status: int) -> None:
    document = client.get(path)
    assert (document.status_code, document.headers["content-type"]) == (status, "application/problem+json")
    reply = client.get(path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert reply.status_code == status
    assert reply.headers["content-type"].startswith("text/html")
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert document.json()["detail"] in html.unescape(reply.text)
    assert 'href="/"' in reply.text


def test_home_lists_jobs_and_offers_a_form(client: httpx.Client) -> None:
    text = page(client, "/")
    assert 'href="/jobs/drawn/view"' in text
    assert 'name="images"' in text


def test_a_finished_job_shows_its_finding_its_effects_and_pairs(client: httpx.Client) -> None:
    text = page(client, "/jobs/drawn/view")
    assert 'class="verdict is-weak"' in text
    assert "at night" in text.split('<p class="sentence">')[1].split("</p>")[0]
    assert "<b>Provisional.</b>" in text
    assert len(pairs(text.partition('class="verdict is-open"')[0])) == 3
    assert 'class="forest"' in text
    menu = text[text.index('<ul class="menu"') : text.index("</header>")]
    assert "data-delete" in menu, "nobody hits it by accident"


def test_the_gallery_loads_small_pictures_and_a_pair_large_ones(client: httpx.Client) -> None:
    grain = np.random.default_rng(0).integers(0, 256, (800, 1_200, 3), dtype=np.uint8)
    photograph = encode(grain)
    upload = client.put(f"/images/{hashlib.sha256(photograph).hexdigest()}", content=photograph).json()
    small = client.get(f"/thumbnails/{upload['digest']}")
    assert (small.status_code, small.headers["content-type"]) == (200, "image/webp")
    assert len(small.content) < 60_000 < len(photograph)
    with Image.open(io.BytesIO(small.content)) as image:
        assert image.size == (256, 171)
    assert client.get(f"/thumbnails/{'0' * 64}").status_code == 404
    shown = re.findall(r'<img class[^>]* src="([^"]+)"', text := page(client, "/jobs/drawn/gallery"))
    assert shown
    assert all(address.startswith("/thumbnails/") for address in shown)
    assert {client.get(address).headers["content-type"] for address in shown[:3]} == {"image/png"}, "they are small"
    assert re.findall(r'src="/images/', page(client, pairs(text)[0]))


@pytest.mark.slow
def test_everything_that_a_page_loads_is_there(client: httpx.Client) -> None:
    for path in ("/", "/jobs/drawn/view", pairs(page(client, "/jobs/drawn/view"))[0]):
        loaded = set(re.findall(r'(?:src|<link[^>]* href)="([^"]+)"', page(client, path)))
        assert loaded
        for address in loaded:
            assert client.get(address).status_code == 200, address


def test_a_running_job_follows_its_events(client: httpx.Client) -> None:
    text = page(client, "/jobs/running/view")
    assert 'data-events="/jobs/running/events"' in text
    assert 'data-post="/jobs/running/cancel"' in text
    progress = page(client, "/jobs/running/progress")
    assert 'data-state="running"' in progress
    assert "Now: " in progress
    assert "dillema" in text


@pytest.mark.parametrize(
    "path", ["/jobs/none/view", "/jobs/none/progress", "/jobs/drawn/pairs/none", "/static/none", "/static/../routes.py"]
)
def test_unknown_ids_are_not_found(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_the_review_order_is_kept_from_pair_to_pair(client: httpx.Client) -> None:
    links = list(dict.fromkeys(pairs(page(client, "/jobs/drawn/gallery?order=review"))))
    review = client.get("/jobs/drawn/results?limit=1").json()["metrics"]["review"]
    assert [link.partition("?")[0].rpartition("/")[2] for link in links] == review[: len(links)]
    second = page(client, links[1])
    assert f'id="before" rel="prev" href="{links[0]}"' in second
    assert f'id="after" rel="next" href="{links[2]}"' in second
    assert 'id="before"' not in page(client, links[0])
