"""Files that are dropped on the job form one after another, in headless Chromium."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from shared.media.images import encode
from tests.support.browser import needs_browser, open_page, overflow, violations
from tests.support.gateway_under_test import Gateway, picture
from tests.support.pages import choose, home_of

pytestmark = needs_browser

TASK = "classify the vehicle"
LABELS = b"file,label\na.png,bus\nb.png,car\n"
# Drops files on an element, as a browser tells of it; returns whether the page kept the browser from opening them.
DROP = """([target, files]) => {
  const dataTransfer = new DataTransfer();
  for (const [name, content] of Object.entries(files)) {
    const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    dataTransfer.items.add(new File([bytes], name));
  }
  const kept = ["dragover", "drop"].map((kind) => {
    const event = new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer });
    return !document.querySelector(target).dispatchEvent(event);
  });
  return kept.every(Boolean);
}"""


def drop(page: Page, files: Mapping[str, bytes], target: str = "#drop") -> bool:
    """Whether the page took the files, so that the browser does not open them in its place."""
    sent = {name: base64.b64encode(data).decode() for name, data in files.items()}
    taken: bool = page.evaluate(DROP, [target, sent])
    return taken


def folder_of(parent: Path, name: str, images: int) -> Path:
    folder = parent / name
    folder.mkdir(parents=True)
    for number in range(images):
        (folder / f"{number}.png").write_bytes(picture(10 * number, size=32))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["manifest.csv", "labels.csv"])
def test_labels_dropped_after_the_images_join_them(gateway: Gateway, browser: Browser, name: str) -> None:
    with open_page(browser, home_of(gateway)) as page:
        page.fill('[name="task"]', TASK)
        assert drop(page, {"a.png": picture(1), "b.png": picture(2)})
        expect(page.locator("#chosen")).to_have_text("2 images")
        assert drop(page, {name: LABELS})
        expect(page.locator("#chosen")).to_have_text(f"2 images, labels from {name}")
        expect(page.locator("#plan .counts")).to_contain_text("bus 1", timeout=120_000)  # the first plan of a process
        page.get_by_role("button", name="Start the job").click()
        page.wait_for_url("**/jobs/*/view")
        job = gateway.client.get(page.url.removesuffix("/view")).json()
        assert (job["images"], job["labelled"]) == (2, 2)


def test_a_table_without_the_columns_of_labels_is_named_with_what_it_needs(gateway: Gateway, browser: Browser) -> None:
    with open_page(browser, home_of(gateway)) as page:
        drop(page, {"a.png": picture(1), "sizes.csv": b"name,width\na.png,32\n"})
        expect(page.locator("#chosen")).to_have_text(re.compile("^1 image, 1 other file.*sizes.csv.*file,label"))
        drop(page, {"one.csv": LABELS, "two.csv": LABELS})
        expect(page.locator("#chosen")).to_have_text(re.compile(r"^1 image, one\.csv and two\.csv.*Labels"))


def test_class_folders_add_up_until_they_are_cleared(gateway: Gateway, browser: Browser, tmp_path: Path) -> None:
    with open_page(browser, home_of(gateway), phone=True) as page:
        page.fill('[name="task"]', TASK)
        choose(page, folder_of(tmp_path, "bus", 3))
        expect(page.locator("#chosen")).to_have_text("3 images")
        choose(page, folder_of(tmp_path, "car", 2))
        expect(page.locator("#chosen")).to_have_text("5 images")
        expect(page.locator("#plan .counts")).to_contain_text("bus 3", timeout=30_000)
        expect(page.locator("#plan .counts")).to_contain_text("car 2")
        choose(page, tmp_path / "car")
        expect(page.locator("#chosen")).to_contain_text("5 images, 2 files")
        page.locator('[name="images"]').set_input_files([])
        expect(page.locator("#thumbnails canvas")).to_have_count(5)
        assert not violations(page)
        assert overflow(page) <= 0
        page.get_by_role("button", name="Clear files").click()
        expect(page.locator("#chosen")).to_have_text("")
        expect(page.locator("#thumbnails")).to_be_hidden()
        expect(page.locator("#plan")).to_be_hidden()
        expect(page.locator("#folder")).to_be_focused()
        drop(page, {"a.png": picture(1)})
        expect(page.locator("#chosen")).to_have_text("1 image")


def test_a_folder_of_masks_joins_its_images_and_its_legend_is_not_cut(
    gateway: Gateway, browser: Browser, tmp_path: Path
) -> None:
    images, masks = folder_of(tmp_path, "set", 24), tmp_path / "masks"
    masks.mkdir()
    for number in range(24):
        (masks / f"{number}.png").write_bytes(encode(np.repeat(np.arange(32, dtype=np.uint8)[None] // 4, 32, axis=0)))
    with open_page(browser, home_of(gateway)) as page:
        choose(page, images)
        choose(page, masks)
        expect(page.locator("#chosen")).to_have_text("24 images, 24 masks")
        expect(page.locator("#legend span")).to_have_count(8)
        for width in (320, 390, 700, 1400):
            page.set_viewport_size({"width": width, "height": 900})
            for name in page.locator("#legend span").all():
                place, around = name.bounding_box(), page.locator("#drop").bounding_box()
                assert place is not None
                assert around is not None
                assert around["x"] <= place["x"]
                assert place["x"] + place["width"] <= around["x"] + around["width"]
                assert place["y"] + place["height"] <= around["y"] + around["height"]
            assert page.locator("#legend").evaluate("words => !words.closest('#thumbnails')"), "it does not scroll away"


def test_a_drop_beside_the_box_is_taken_and_one_on_another_field_is_left_to_it(
    gateway: Gateway, browser: Browser
) -> None:
    with open_page(browser, home_of(gateway)) as page:
        assert drop(page, {"a.png": picture(1)}, "h1")
        expect(page.locator("#chosen")).to_have_text("1 image")
        assert drop(page, {"b.png": picture(2)}, '[name="task"]')
        expect(page.locator("#chosen")).to_have_text("2 images")
        assert not drop(page, {"labels.csv": LABELS}, '[name="manifest"]')
        expect(page.locator("#chosen")).to_have_text("2 images")
