"""The gallery, the map and an image's page of a running gateway: filters with counts, pages, ways to compare."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.support.drawn_job import serve_drawn_job
from tests.support.gateway_under_test import Gateway
from tests.support.pages import page_text
from tests.support.recorded_embeddings import record_embeddings

GALLERY = "/jobs/drawn/gallery"
# Id and place of a point: a circle, or the diamond of a changed prediction.
SHAPE = r"<(?:circle class=\"point[^\"]*\" cx=\"|path class=\"point failed\" d=\"M)"
POINT = r"data-id=\"([^\"]+)\"[^>]*>\s*" + SHAPE + r"(\d+)(?:\" cy=\"| )(\d+)"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_drawn_job(tmp_path_factory.mktemp("gallery"), per_class=14) as served:
        yield served


@pytest.fixture
def client(gateway: Gateway) -> httpx.Client:
    return gateway.client


def cards(text: str) -> list[str]:
    return re.findall(r'<article class="card[^"]*" id="([^"]+)"', text)


def total(text: str) -> int:
    number = re.search(r"<b>([\d,]+)</b> counterfactual", text)
    assert number
    return int(number[1].replace(",", ""))


def chips(text: str) -> list[tuple[str, str, int]]:
    """Each filter that could be chosen: its address, its words, how many images it would leave."""
    links = re.findall(r'<a class="chip" href="([^"]+)">([^<]+) <span class="count">([\d,]+)</span>', text)
    return [(address, words.strip(), int(number.replace(",", ""))) for address, words, number in links]


def listed(client: httpx.Client, query: str) -> int:
    """How many counterfactuals the API lists with these filters."""
    number, cursor = 0, ""
    while True:
        reply = client.get(f"/jobs/drawn/results?limit=200&{query}{cursor}").json()
        number += len(reply["counterfactuals"])
        if reply["next"] is None:
            return number
        cursor = f"&cursor={reply['next']}"


@pytest.mark.slow
@pytest.mark.parametrize("query", ["", "class=bus", "flipped=true&model=night-bus", "verdict=rejected&class=car"])
def test_each_count_is_what_its_filter_leaves(client: httpx.Client, query: str) -> None:
    text = page_text(client, f"{GALLERY}?{query}")
    assert total(text) == listed(client, query)
    offered = chips(text)
    assert len(offered) >= 8
    for address, words, number in offered:
        assert total(page_text(client, address)) == number, f"{words} of {query!r}"


def test_value_and_direction_mean_the_filters_of_the_api(client: httpx.Client) -> None:
    query = "method=dillema&factor=weather&class=bus&model=night-bus"
    to = page_text(client, f"{GALLERY}?{query}&value=night&direction=to")
    assert total(to) == listed(client, f"{query}&value=night") > 0
    before = page_text(client, f"{GALLERY}?{query}&value=clear&direction=from")
    assert total(before) == listed(client, f"{query}&from=clear") > 0
    assert cards(before) == cards(page_text(client, f"{GALLERY}?{query}&from=clear"))


def test_pages_go_forth_and_back_through_every_image_once(client: httpx.Client) -> None:
    path: str | None = f"{GALLERY}?verdict=accepted"
    visited: list[list[str]] = []
    back: list[str | None] = []
    while path:
        text = page_text(client, path)
        assert f"{sum(map(len, visited)) + 1:,} to" in text
        visited.append(cards(text))
        before = re.search(r'rel="prev" href="([^"]+)"', text)
        back.append(before[1] if before else None)
        following = re.search(r'rel="next" href="([^"]+)"', text)
        path = following[1] if following else None
    names = [name for names in visited for name in names]
    assert len(visited) > 3
    assert len(names) == len(set(names)) == listed(client, "verdict=accepted")
    assert back[0] is None
    for (earlier, _), (_, address) in pairwise(zip(visited, back, strict=True)):
        assert address
        assert cards(page_text(client, address)) == earlier


def test_the_review_order_has_pages_too(client: httpx.Client) -> None:
    first = page_text(client, f"{GALLERY}?order=review")
    review = client.get("/jobs/drawn/results?limit=1").json()["metrics"]["review"]
    assert cards(first) == review[:24]
    following = re.search(r'rel="next" href="([^"]+)"', first)
    if len(review) > 24:
        assert following
        second = page_text(client, following[1])
        assert cards(second) == review[24:48]
        assert f'rel="prev" href="{GALLERY}?order=review"' in second


def test_a_filter_without_images_can_be_taken_off(client: httpx.Client) -> None:
    text = page_text(client, f"{GALLERY}?class=zebra&verdict=accepted")
    assert total(text) == 0
    assert f'<a class="chip active" href="{GALLERY}?verdict=accepted" aria-current="true">class: zebra</a>' in text
    assert client.get(f"{GALLERY}?klass=car").status_code == 422
    assert client.get(f"{GALLERY}?cursor=nonsense").status_code == 422
    assert client.get("/jobs/none/gallery").status_code == 404


def test_an_image_is_found_again_in_its_gallery_and_has_all_its_arms(client: httpx.Client) -> None:
    text = page_text(client, f"{GALLERY}?class=bus&verdict=accepted&show=blink")
    links = re.findall(r'<h3><a href="([^"]+)"', text)
    image = page_text(client, links[1])
    assert f'id="before" rel="prev" href="{links[0]}"' in image
    assert f'id="after" rel="next" href="{links[2]}"' in image
    assert f'id="back" href="{GALLERY}?class=bus&verdict=accepted&show=blink"' in image
    name = re.search(r"/pairs/([^?]+)", links[1])
    assert name
    replay = re.search(r"<pre[^>]*>(contrafact replay [^<]*)</pre>", image)
    assert replay
    assert shlex.split(replay[1])[-1] == name[1]
    for words in ("<b>Source</b>", "<b>Null arm</b>", "<b>Counterfactual</b>", "Prompts and replies", "structure"):
        assert words in image
    against_null = page_text(client, f"{links[1]}&against=null&show=difference")
    view = client.get(f"/jobs/drawn/results/{name[1]}").json()
    assert f'class="reference" src="/images/{view["null_image"]}"' in against_null
    assert f"/differences/{view['image']}/{view['null_image']}" in against_null


def test_an_edit_without_an_image_has_a_page(client: httpx.Client) -> None:
    text = page_text(client, f"{GALLERY}?check=class%20words&show=difference")
    assert "not rendered" in text
    link = re.findall(r'<h3><a href="([^"]+)"', text)[0]
    assert "class words" in page_text(client, link)


def test_a_difference_is_the_distance_of_the_pixels(client: httpx.Client) -> None:
    view = client.get("/jobs/drawn/results?limit=1").json()["counterfactuals"][0]
    reply = client.get(f"/jobs/drawn/differences/{view['image']}/{view['source']['image']}")
    assert reply.headers["content-type"] == "image/png"
    first, second = (
        np.asarray(Image.open(io.BytesIO(client.get(f"/images/{digest}").content))).astype(int)
        for digest in (view["image"], view["source"]["image"])
    )
    expected = np.minimum(2 * np.abs(first - second).max(axis=2), 255)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(reply.content))), expected)
    assert expected.max() > 100
    assert client.get(f"/jobs/drawn/differences/{view['image']}/{'0' * 64}").status_code == 404


def test_the_scripts_of_the_pages_are_small(client: httpx.Client) -> None:
    for path in (GALLERY, "/jobs/drawn/map"):
        scripts = re.findall(r'<script src="([^"]+)"', page_text(client, path))
        assert scripts
        assert sum(len(client.get(script).content) for script in scripts) < 50_000


def test_the_map_places_images_by_their_recorded_embeddings(gateway: Gateway) -> None:
    """Edits to night lie apart from all others."""
    placed = record_embeddings(gateway, "drawn", "night")
    text = page_text(gateway.client, "/jobs/drawn/map?verdict=accepted")
    points = {id: (float(x), float(y)) for id, x, y in re.findall(POINT, text)}
    assert len(points) == listed(gateway.client, "verdict=accepted")
    night = np.array([points[id] for id in points if placed[id] == "night"])
    others = np.array([points[id] for id in points if placed[id] != "night"])
    apart = np.linalg.norm(night.mean(axis=0) - others.mean(axis=0))
    assert apart > 5 * max(night.std(), 1) or apart > 300
    assert 'class="point failed"' in text
    few = page_text(gateway.client, "/jobs/drawn/map?class=bus&factor=weather&value=snow&direction=to&of=changes")
    assert 0 < few.count("data-id=") < len(points)
    assert "of=changes" in re.findall(r'<a href="([^"]+)" data-id', few)[0]
    link = re.findall(r'<a href="([^"]+)" data-id', few)[0]
    assert gateway.client.get(link).status_code == 200
