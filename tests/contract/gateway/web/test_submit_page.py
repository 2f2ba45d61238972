"""The form before a job starts: what its plan says, where a refusal stands, and what a browser shows of the files."""

from __future__ import annotations

import html
import io
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import func, select

from gateway.auth.middleware import SMALL_BODY_BYTES
from gateway.database.tables import Job, OwnedImage
from gateway.web.form_fields import FIELDS, field_of
from gateway.web.home import browser_name
from shared.media.images import encode
from shared.problems import InvalidInput
from tests.support.browser import needs_browser, open_page, overflow, violations
from tests.support.gateway_under_test import Gateway, picture
from tests.support.pages import choose, field_in, home_of, images_in, words_of
from tests.support.small_services import SEGMENTER

TASK = "classify the vehicle"
MEANING = {"classes": [{"name": "road", "index": 0}, {"name": "car", "index": 7}], "void": [255]}


def plan(gateway: Gateway, names: Sequence[str], manifest: str = "", **typed: str) -> str:
    """The fragment for images of these names, which are not sent."""
    images = [{"digest": f"{number:064x}", "name": name} for number, name in enumerate(names)]
    fields = {"task": TASK, "methods": "dillema", "listed": json.dumps({"images": images}), **typed}
    files = {"manifest": ("labels.csv", manifest.encode())} if manifest else {"manifest": ("", b"")}
    reply = gateway.client.post("/plan", data=fields, files=files)
    assert reply.status_code == 200, reply.text
    return html.unescape(reply.text)


def test_the_plan_counts_labels_by_folder_and_says_what_it_costs_and_can_show(gateway: Gateway) -> None:
    with gateway.context.sessions() as session:
        before = [session.scalar(select(func.count()).select_from(table)) for table in (Job, OwnedImage)]
    fragment = plan(gateway, [f"set/{name}/{number}.png" for name in ("bus", "car") for number in range(14)])
    words = words_of(fragment)
    assert "bus 14" in words
    assert "car 14" in words
    assert "✓ street-classifier" in words
    assert images_in(fragment) == (28, 28)
    assert "2 models" in words
    assert "dillema 168 56 0" in words  # six values for each image, and a null arm for each of their two regions
    assert "bus , 14 images" in words
    with gateway.context.sessions() as session:
        after = [session.scalar(select(func.count()).select_from(table)) for table in (Job, OwnedImage)]
    assert after == before, "a plan stores nothing"


def test_the_plan_reads_the_manifest_and_counts_images_without_label(gateway: Gateway) -> None:
    words = words_of(plan(gateway, ["a.png", "b.png", "c.png"], manifest="file,label\na.png,bus\nb.png,bus\nc.png,\n"))
    assert "bus 2" in words
    assert "without label 1" in words
    assert "without label" not in words_of(plan(gateway, ["a.png", "b.png"]))


def test_the_plan_warns_of_checks_that_are_off(gateway: Gateway) -> None:
    """They were grey, like a note."""
    fragment = plan(gateway, ["a.png"], methods="shifts", shifts="at night")
    [line] = [line for line in re.findall('<p class="warning">.*?</p>', fragment) if "refuse" in line]
    assert "shifts: structure refuses nothing" in line
    assert "refuses nothing" not in plan(gateway, ["a.png"])


def test_labels_that_a_model_does_not_know_are_named_and_can_be_mapped(gateway: Gateway) -> None:
    names = ["automobile/1.png", "bus/1.png"]
    fragment = plan(gateway, names)
    assert field_in(fragment) == "label_map"
    assert re.search("✗ street-classifier [^.]*automobile", words_of(fragment))
    mapped = plan(gateway, names, label_map="automobile = car")
    assert field_in(mapped) == ""
    assert "✗" not in mapped
    assert field_in(plan(gateway, names, label_map="automobile car")) == "label_map"


@pytest.mark.parametrize(
    ("typed", "manifest", "field"),
    [
        ({"task": "ab"}, "", "task"),
        ({"methods": "magic"}, "", "methods"),
        ({"methods": "corruptions", "shifts": "in thick fog"}, "", "shifts"),
        ({"models": "nobody"}, "", "models"),
        ({}, "file,label\nz.png,bus\n", "manifest"),
        ({"classes": "road: 0"}, "", "classes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_refusal_stands_beside_its_field(gateway: Gateway, typed: dict[str, str], manifest: str, field: str) -> None:
    assert field_in(plan(gateway, ["a.png"], manifest, **typed)) == field
    fields = {"task": TASK, "methods": "dillema", **typed}
    files = {"images": ("a.png", picture()), "manifest": ("l.csv", manifest.encode()) if manifest else ("", b"")}
    by_script = gateway.client.post("/", data=fields, files=files, headers={"Accept": "application/json"})
    assert by_script.json()["field"] == field
    text = html.unescape(gateway.client.post("/", data=fields, files=files, headers={"Accept": "text/html"}).text)
    shown = re.findall(r'data-problem="([a-z_]+)">([^<]+)</p>', text)
    assert shown == [(field, by_script.json()["detail"])]
    assert f'aria-invalid="true" aria-describedby="problem-{field}"' in text or field in ("methods", "models")


def test_a_refusal_that_names_no_field_stands_above_the_form() -> None:
    assert field_of(InvalidInput("the object store failed")) == ""
    assert {field_of(InvalidInput(f"the {name} is wrong")) for name in ("task", "manifest", "image")} <= set(FIELDS)


def test_folders_of_sent_files_are_labels(gateway: Gateway) -> None:
    images = [("images", (name, picture(shade))) for shade, name in enumerate(("set/bus/1.png", "set/car/1.png"))]
    reply = gateway.client.post("/", data={"task": TASK, "methods": "dillema"}, files=images)
    assert reply.status_code == 303
    job = gateway.client.get(reply.headers["Location"].removesuffix("/view")).json()
    assert (job["images"], job["labelled"]) == (2, 2)
    assert "without label" not in words_of(plan(gateway, ["one/a.png", "one/b.png"])), "one folder is no class"


def test_quotes_and_line_breaks_in_names_from_a_browser_are_read(gateway: Gateway) -> None:
    """httpx escapes a quote as browsers do: %22."""
    fields = {"task": TASK, "methods": "dillema", "label_map": 'the "bus" = bus'}
    names = ('set/the "bus"/1.png', "set/car/1.png")
    images = [("images", (name, picture(shade))) for shade, name in enumerate(names)]
    reply = gateway.client.post("/", data=fields, files=images)
    assert reply.status_code == 303, reply.text
    assert "%22" not in gateway.client.get(reply.headers["Location"]).text
    assert browser_name("50 % a%0D%0Ab%22.png") == '50 % a\ufffd\ufffdb".png'
    sent = gateway.client.post(
        "/jobs", data={"task": TASK}, files=[("images", (name, b"junk")) for name in ("a%22b.png", "c.png")]
    )
    assert "a%22b.png" in sent.json()["detail"], "the HTTP API keeps names as they are sent"


@pytest.mark.slow
def test_the_plan_takes_what_the_form_takes_beyond_small_bodies(gateway: Gateway) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (96, 96, 3), np.uint8)
    scenes = [(f"{number}.png", encode(np.roll(noise, number, axis=0))) for number in range(24)]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for place, (name, data) in enumerate(scenes):
            file.writestr(f"set/{('bus', 'car')[place % 2]}/{name}", data)
    mask = encode(np.full((96, 96), 7, np.uint8))
    masked = [("images", scene) for scene in scenes] + [("masks", (name, mask)) for name, _ in scenes]
    meaning = {"classes": json.dumps(MEANING), "models": SEGMENTER}
    for parts, typed, images in (
        ([("images", ("set.zip", archive.getvalue()))], {}, 24),
        (masked, meaning, 24),
    ):
        assert sum(len(data) for _, (_, data) in parts) > 2 * SMALL_BODY_BYTES
        reply = gateway.client.post("/plan", data={"task": TASK, "methods": "dillema", **typed}, files=parts)
        assert reply.status_code == 200, reply.text
        assert images_in(reply.text) == (images, images)
    names = [
        f"a folder with a long name/{label}/frame {number:06}.png" for label in ("bus", "car") for number in range(450)
    ]
    assert images_in(plan(gateway, names)) == (900, 900)


def test_images_without_labels_are_a_box_and_advice_is_in_words_of_the_form(gateway: Gateway) -> None:
    names = ["omnibus/1.png", "car/1.png"]
    refusal = words_of(plan(gateway, names))
    assert "The images have no labels" in refusal, "the name of the box"
    assert "`" not in refusal
    assert "ground_truth" not in refusal
    without = plan(gateway, names, ground_truth="none")
    assert field_in(without) == ""
    assert "omnibus" not in words_of(without)
    files = [("images", (name, picture(shade))) for shade, name in enumerate(names)]
    fields = {"task": TASK, "methods": "dillema", "ground_truth": "none"}
    reply = gateway.client.post("/", data=fields, files=files)
    assert reply.status_code == 303
    assert gateway.client.get(reply.headers["Location"].removesuffix("/view")).json()["labelled"] == 0
    both = plan(gateway, ["a.png"], ground_truth="none", classes=json.dumps(MEANING))
    assert field_in(both) == "ground_truth"
    text = gateway.client.post("/", data={**fields, "task": "ab"}, files=files, headers={"Accept": "text/html"}).text
    assert 'name="ground_truth" type="checkbox" value="none" checked' in text, "the box stays ticked after a refusal"


def fill_folder(folder: Path) -> Path:
    for number, label in enumerate(["bus", "car"] * 3):
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{number}.png").write_bytes(picture(20 * number, size=32))
    (folder / ".DS_Store").write_bytes(b"junk")
    for hidden in ("@eaDir", ".thumbs"):  # hidden as in archives and on the command line
        (folder / hidden).mkdir()
        (folder / hidden / "0.png").write_bytes(picture(1, size=32))
    (folder / "notes.txt").write_text("not an image")
    return folder


@needs_browser
@pytest.mark.parametrize(("dark", "phone"), [(False, False), (True, True)], ids=["light wide", "dark phone"])
def test_a_folder_is_shown_planned_and_submitted(
    gateway: Gateway, browser: Browser, tmp_path: Path, dark: bool, phone: bool
) -> None:
    with open_page(browser, home_of(gateway), dark=dark, phone=phone) as page:
        page.fill('[name="task"]', TASK)
        choose(page, fill_folder(tmp_path / "set"))
        expect(page.locator("#chosen")).to_contain_text("6 images, 1 other file")
        expect(page.locator("#thumbnails canvas")).to_have_count(6)
        expect(page.locator("#plan")).to_contain_text("✓ street-classifier", timeout=30_000)
        expect(page.locator("#plan .counts")).to_contain_text("bus 3")
        assert not violations(page)
        assert overflow(page) <= 0
        page.get_by_role("button", name="Start the job").click()
        page.wait_for_url("**/jobs/*/view")
        job = gateway.client.get(page.url.removesuffix("/view")).json()
        assert (job["images"], job["labelled"]) == (6, 6)


@needs_browser
def test_masks_are_painted_over_their_images_and_unknown_values_are_named(
    gateway: Gateway, browser: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "set"
    (folder / "masks").mkdir(parents=True)
    (folder / "a.png").write_bytes(picture(99, size=32))
    mask = np.zeros((32, 32, 3), np.uint8)
    mask[:16], mask[16:20] = 7, 3
    (folder / "masks" / "a.png").write_bytes(encode(mask))
    with open_page(browser, home_of(gateway)) as page:
        page.locator("summary", has_text="Masks").click()
        page.fill('textarea[name="classes"]', json.dumps(MEANING))
        choose(page, folder)
        expect(page.locator("#chosen")).to_have_text("1 image, 1 mask")
        expect(page.locator("#legend")).to_contain_text("car")
        expect(page.locator("#legend")).to_contain_text("road")
        expect(page.locator("#legend")).to_contain_text("not described")
        expect(page.get_by_role("img", name="set/a.png with its mask")).to_be_visible()


@needs_browser
def test_a_refusal_appears_beside_its_field_before_the_start(
    gateway: Gateway, browser: Browser, tmp_path: Path
) -> None:
    with open_page(browser, home_of(gateway)) as page:
        page.fill('[name="task"]', TASK)
        folder = fill_folder(tmp_path / "set")
        (folder / "bus").rename(folder / "omnibus")
        choose(page, folder)
        words = page.locator("#problem-label_map")
        expect(words).to_contain_text("omnibus", timeout=30_000)
        expect(page.locator('[name="label_map"]')).to_have_attribute("aria-invalid", "true")
        page.fill('[name="label_map"]', "omnibus = bus")
        expect(words).to_be_hidden(timeout=30_000)
        expect(page.locator("#plan .cost")).to_be_visible()
