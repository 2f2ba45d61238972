"""The page of models under test: what it lists, uploads from the browser, and shows of a few images."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.browser import needs_browser, open_page, overflow, violations
from tests.support.gateway_under_test import Gateway, key_of, picture, serve_gateway
from tests.support.model_packages import HUB


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with serve_gateway(tmp_path) as served:
        yield served


def put(gateway: Gateway, data: bytes, headers: dict[str, str] | None = None) -> str:
    digest = hashlib.sha256(data).hexdigest()
    gateway.client.put(f"/images/{digest}", content=data, headers=headers).raise_for_status()
    return digest


def test_a_model_answers_for_uploaded_images_and_the_newest_upload_is_ticked(gateway: Gateway) -> None:
    client = gateway.client
    before = client.get("/").text
    files = [("model", (name, data)) for name, data in HUB.items()]
    client.post("/models", files=files, data={"name": "mine"}).raise_for_status()
    digest = put(gateway, picture())
    listed = client.get("/models").json()["models"]
    for model in listed[0]["name"], "mine":
        (answer,) = client.post("/own-models/answers", json={"model": model, "images": [digest]}).json()
        assert answer["answer"], answer
        assert client.get(f"/thumbnails/{answer['image']}").status_code == 200
    text = html.unescape(client.get("/own-models?model=mine").text)
    assert "Try mine" in text
    assert 'value="mine" checked' not in before
    assert 'value="mine" checked' in client.get("/").text
    assert f'value="{listed[0]["name"]}" checked' in client.get(f"/?model={listed[0]['name']}").text
    assert client.post("/own-models/answers", json={"model": "none", "images": [digest]}).status_code == 422
    assert client.post("/own-models/answers", json={"model": "mine", "images": ["0" * 64]}).status_code == 404
    assert client.post("/own-models/answers", json={"model": "mine", "images": [digest] * 4}).status_code == 422


def test_another_owners_images_and_models_are_unknown(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, authentication=True) as gateway:
        ann, ben = key_of(gateway, "ann"), key_of(gateway, "ben")
        digest = put(gateway, picture(), headers=ann)
        model = gateway.client.get("/models", headers=ben).json()["models"][0]["name"]
        asked = {"model": model, "images": [digest]}
        assert gateway.client.post("/own-models/answers", json=asked, headers=ann).status_code == 200
        assert gateway.client.post("/own-models/answers", json=asked, headers=ben).status_code == 404


@pytest.mark.slow
@needs_browser
def test_a_model_is_uploaded_and_tried_in_the_browser(gateway: Gateway, browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, data in HUB.items():
        (folder / name).write_bytes(data)
    (tmp_path / "a.png").write_bytes(picture())
    base = str(gateway.client.base_url).rstrip("/")
    with open_page(browser, f"{base}/own-models") as page:
        assert not violations(page)
        chosen = page.locator('input[name="model"]')
        chosen.set_input_files([folder / name for name in HUB if name != "config.json"])
        page.locator('input[name="name"]').fill("mine")
        page.get_by_role("button", name="Upload", exact=True).click()
        page.locator("#problem").get_by_text("config.json").wait_for()
        chosen.set_input_files([folder / name for name in HUB])
        page.get_by_role("button", name="Upload", exact=True).click()
        page.wait_for_url("**/own-models?model=mine")
        page.locator("#samples").set_input_files(tmp_path / "a.png")
        page.locator("#answers figure").wait_for()
        assert not violations(page)
        page.get_by_role("link", name="Test mine with your images").click()
        assert page.locator('input[name="models"]:checked').evaluate("box => box.value") == "mine"
    with open_page(browser, f"{base}/own-models", phone=True) as page:
        assert overflow(page) <= 0
