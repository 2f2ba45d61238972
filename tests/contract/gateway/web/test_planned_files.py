"""The plan of files that are sent with the form: labels of archives, classes of masks, and how models match them."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Route, expect
from sqlalchemy import func, select

from gateway.database.tables import Job, OwnedImage
from shared.media.images import encode
from tests.support.archives import tarred, zipped
from tests.support.browser import needs_browser, open_page, overflow, violations
from tests.support.gateway_under_test import Gateway, picture, serve_gateway
from tests.support.pages import field_in, home_of, images_in, unknown_to, words_of
from tests.support.small_services import SEGMENTER

TASK = "classify the vehicle"
MEANING = {"classes": [{"name": "road", "index": 0}, {"name": "car", "index": 7}], "void": [255]}
MASKED = {"classes": json.dumps(MEANING), "models": SEGMENTER}
HALF = encode(np.repeat(np.array([[0, 0, 7, 255]], np.uint8), 4, axis=0))  # half road, a quarter car
ROAD = encode(np.zeros((4, 4), np.uint8))
PHOTO = {f"images/{name}.png": picture(shade, size=4) for shade, name in enumerate("abc")}
Sent = Sequence[tuple[str, tuple[str, bytes]]]


def plan(gateway: Gateway, sent: Sent, **typed: Any) -> str:
    fields = {"task": TASK, "methods": "dillema", **typed}
    reply = gateway.client.post("/plan", data=fields, files=list(sent))
    assert reply.status_code == 200, reply.text
    return html.unescape(reply.text)


def archive(data: bytes, name: str = "set.zip") -> Sent:
    return [("images", (name, data))]


def in_folders(*labels: str) -> dict[str, bytes]:
    return {
        f"set/{label}/{n}.png": picture(n + 9 * at, size=4) for at, label in enumerate(labels) for n in range(at + 1)
    }


@pytest.mark.parametrize(("pack", "name"), [(zipped, "set.zip"), (tarred, "set.tar")])
def test_the_folders_of_an_archive_are_counted_and_matched(gateway: Gateway, pack: Any, name: str) -> None:
    fragment = plan(gateway, archive(pack(in_folders("bus", "car")), name))
    assert "bus 1 car 2" in words_of(fragment)
    assert unknown_to(fragment)["street-classifier"] == []
    assert images_in(fragment) == (3, 3)
    with gateway.context.sessions() as session:
        assert [session.scalar(select(func.count()).select_from(table)) for table in (Job, OwnedImage)] == [0, 0]


def test_labels_of_an_archive_that_a_model_does_not_know_are_named(gateway: Gateway) -> None:
    sent = archive(zipped(in_folders("automobile", "bus")))
    fragment = plan(gateway, sent)
    assert field_in(fragment) == "label_map"
    assert "automobile 1 bus 2" in words_of(fragment)
    assert unknown_to(fragment)["street-classifier"] == ["automobile"]
    mapped = plan(gateway, sent, label_map="automobile = car")
    assert field_in(mapped) == ""
    assert unknown_to(mapped)["street-classifier"] == []
    ignored = plan(gateway, sent, ground_truth="none")
    assert images_in(ignored) == (3, 0)
    assert "automobile" not in words_of(ignored)


def test_the_manifest_of_an_archive_has_its_labels(gateway: Gateway) -> None:
    files = {"a.png": picture(1), "b.png": picture(2), "c.png": picture(3)}
    table = b"file,label\na.png,bus\nb.png,bus\nc.png,\n"
    inside = words_of(plan(gateway, archive(zipped({**files, "manifest.csv": table}))))
    beside = words_of(plan(gateway, [*archive(zipped(files)), ("manifest", ("labels.csv", table))]))
    for words in (inside, beside):
        assert "bus 2 without label 1" in words
    assert "without label" not in words_of(plan(gateway, archive(zipped(files))))


@pytest.mark.parametrize("loose", [True, False], ids=["loose", "in a zip"])
def test_the_classes_of_masks_are_counted_by_image_and_by_pixel(gateway: Gateway, loose: bool) -> None:
    masks = {"masks/a.png": HALF, "masks/b.png": ROAD}
    sent: Sent = archive(zipped({**PHOTO, **masks}))
    if loose:
        sent = [("images", (name[7:], data)) for name, data in PHOTO.items()]
        sent = [*sent, *(("masks", (name[6:], data)) for name, data in masks.items())]
    known = plan(gateway, sent, **MASKED)
    words = words_of(known)
    assert re.search(r"Class images share of pixels road 2 86 ?% car 1 14 ?% without mask 1", words), words
    assert unknown_to(known)[SEGMENTER] == []
    assert images_in(known) == (3, 2)
    unknown = {**MEANING, "classes": [{"name": "road", "index": 0}, {"name": "zebra", "index": 7}]}
    fragment = plan(gateway, sent, **{**MASKED, "classes": json.dumps(unknown)})
    assert field_in(fragment) == "classes"
    assert unknown_to(fragment)[SEGMENTER] == ["zebra"]
    assert re.search(r"zebra 1 14 ?%", words_of(fragment))


def test_a_zip_of_masks_without_their_meaning_is_refused_beside_it(gateway: Gateway) -> None:
    for files in (PHOTO, {name[7:]: data for name, data in PHOTO.items()}):
        sent = archive(zipped({**files, "masks/a.png": HALF}))
        fragment = plan(gateway, sent, models=SEGMENTER)
        assert field_in(fragment) == "classes"
        fields = {"task": TASK, "methods": "dillema", "models": SEGMENTER}
        reply = gateway.client.post("/", data=fields, files=list(sent), headers={"Accept": "application/json"})
        assert (reply.status_code, reply.json()["field"]) == (422, "classes")


def test_a_mask_with_a_value_without_meaning_is_named_and_not_counted(gateway: Gateway) -> None:
    wrong = encode(np.full((4, 4), 9, np.uint8))
    sent = archive(zipped({**PHOTO, "masks/a.png": HALF, "masks/b.png": wrong}))
    fragment = plan(gateway, sent, **MASKED)
    words = words_of(fragment)
    assert re.search(r"road 1 67 ?% car 1 33 ?%", words), words
    assert 'data-failures="1"' in fragment
    assert re.search(r"<li>[^<]*\bb\.png[^<]*\b9\b", fragment), fragment


def test_the_limits_of_jobs_hold_before_anything_is_decoded(tmp_path: Any) -> None:
    with serve_gateway(tmp_path, max_images_per_job=2) as gateway:
        fragment = plan(gateway, archive(zipped(in_folders("bus", "car"))))
        assert field_in(fragment) == "images"


@needs_browser
@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, True)], ids=["light wide", "dark phone"])
def test_the_classes_of_an_archives_masks_are_shown_in_a_browser(
    gateway: Gateway, browser: Browser, dark: bool, phone: bool
) -> None:
    data = zipped({**PHOTO, "masks/a.png": HALF, "masks/b.png": ROAD})
    with open_page(browser, home_of(gateway), dark=dark, phone=phone) as page:
        page.fill('[name="task"]', TASK)
        page.set_input_files('[name="images"]', {"name": "set.zip", "mimeType": "application/zip", "buffer": data})
        expect(page.locator("#problem-classes")).to_contain_text("masks", timeout=60_000)
        chosen = f'<input type="hidden" name="models" value="{SEGMENTER}">'  # the profile's own models classify
        page.evaluate("chosen => document.getElementById('submit').insertAdjacentHTML('beforeend', chosen)", chosen)
        page.fill('textarea[name="classes"]', json.dumps(MEANING))
        match = page.locator(f'#plan [data-model="{SEGMENTER}"]').first
        expect(match).to_have_attribute("data-unknown", "[]", timeout=60_000)
        expect(page.locator("#plan tbody").first).to_contain_text("road")
        assert not violations(page)
        assert overflow(page) <= 0


@needs_browser
def test_the_page_says_that_it_waits_for_a_plan(gateway: Gateway, browser: Browser) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    with open_page(browser, home_of(gateway)) as page:
        page.route("**/plan", hold)
        page.fill('[name="task"]', TASK)
        page.set_input_files('[name="images"]', {"name": "a.png", "mimeType": "image/png", "buffer": picture()})
        expect(page.locator("#plan")).to_contain_text("is being planned", timeout=60_000)
        held.pop().continue_()
        expect(page.locator("#plan")).to_contain_text("1 image", timeout=60_000)
        expect(page.locator("#plan")).not_to_contain_text("is being planned")
