"""Read the gateway's pages and fill in its job form."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import httpx
from playwright.sync_api import Page

from tests.support.gateway_under_test import Gateway


def page_text(client: httpx.Client, path: str) -> str:
    """The HTML of a page that answers 200, with its entities read."""
    reply = client.get(path)
    assert reply.status_code == 200, reply.text
    return html.unescape(reply.text)


def words_of(fragment: str) -> str:
    """The words of a piece of HTML, one space between them."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", fragment))


def field_in(fragment: str) -> str:
    """The field of the job form that a plan refuses, or ""."""
    field = re.search(r'data-field="([^"]*)"', fragment)
    assert field
    return field[1]


def unknown_to(fragment: str) -> dict[str, list[str]]:
    """By model under test, the labels or classes of a plan that it does not know."""
    matches = re.findall(r"""data-model="([^"]*)" data-unknown='([^']*)'""", fragment)
    return {model: json.loads(unknown) for model, unknown in matches}


def images_in(fragment: str) -> tuple[int, int]:
    """The number of images in a plan, and of those with a label or mask."""
    images = re.search(r'data-images="(\d+)" data-labelled="(\d+)"', fragment)
    assert images
    return int(images[1]), int(images[2])


def home_of(gateway: Gateway) -> str:
    """The address of the job form."""
    return str(gateway.client.base_url).rstrip("/") + "/"


def choose(page: Page, folder: Path) -> None:
    """Choose a folder in the job form."""
    with page.expect_file_chooser() as chooser:
        page.locator("#folder").click()
    chooser.value.set_files(folder)
