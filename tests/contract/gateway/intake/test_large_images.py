"""Images larger than the working side are scaled down at intake, and every reply about them says so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from contrafact.cli import app
from contrafact.plan_text import scaling
from shared.media.images import decode, encode
from shared.schemas.plans import JobPlan
from tests.support.archives import zipped
from tests.support.gateway_under_test import Gateway, picture, serve_gateway

SIDE = 256
GENERATE = {"task": "classify the vehicle", "models": []}
MASKS = {"classes": [{"name": "road", "index": 0}, {"name": "car", "index": 1}]}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_gateway(tmp_path_factory.mktemp("gateway"), working_side=SIDE) as served:
        yield served


def large(seed: int = 0) -> bytes:
    return encode(np.random.default_rng(seed).integers(0, 256, (300, 600, 3), dtype=np.uint8))


def put(gateway: Gateway, data: bytes, **query: str) -> dict[str, Any]:
    reply = gateway.client.put(f"/images/{hashlib.sha256(data).hexdigest()}", content=data, params=query)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def post(gateway: Gateway, spec: dict[str, Any], *files: tuple[str, bytes], **query: str) -> httpx.Response:
    parts = [("images", file) for file in files]
    return gateway.client.post("/jobs", files=parts, data={"spec": json.dumps(spec)}, params=query)


def test_an_upload_says_that_it_was_scaled_and_from_what(gateway: Gateway) -> None:
    view = put(gateway, large())
    assert (view["width"], view["height"], view["scaled_from"]) == (SIDE, SIDE // 2, [600, 300])
    assert decode(gateway.client.get(f"/images/{view['digest']}").content).shape == (SIDE // 2, SIDE, 3)
    assert put(gateway, picture(1))["scaled_from"] is None


def test_dry_run_and_plan_count_the_images_at_the_working_side(gateway: Gateway) -> None:
    files = [("a.png", large()), ("b.png", picture(2)), ("c.png", large(1))]
    dry = post(gateway, GENERATE, *files, dry_run="true").json()
    job = post(gateway, GENERATE, *files).json()["id"]
    plan = gateway.client.get(f"/jobs/{job}/plan").json()
    for view in (dry, plan):
        assert (view["images"], view["working_side"], view["at_working_side"]) == (3, SIDE, 2)
        (line,) = scaling(JobPlan.model_validate(view))
        assert line == "scaled    2 images have 256 pixels on the longer side, to which larger files are scaled down"
    fields = {"task": GENERATE["task"], "methods": "corruptions"}
    page = gateway.client.post("/plan", data=fields, files=[("images", file) for file in files]).text
    assert "Images of more than 256 pixels on the longer side are scaled down to it" in page


def test_uploaded_masks_fit_their_images_after_both_were_scaled(gateway: Gateway) -> None:
    image, mask = large(2), encode((np.arange(600 * 300).reshape(300, 600) // 600 % 2).astype(np.uint8))
    put(gateway, image)
    put(gateway, mask, mask="true")
    digests = {"digest": hashlib.sha256(image).hexdigest(), "mask": hashlib.sha256(mask).hexdigest(), "name": "a.png"}
    reply = gateway.client.post("/jobs", json={**GENERATE, "masks": MASKS, "images": [digests]})
    assert reply.status_code == 202, reply.text
    assert (reply.json()["labelled"], reply.json()["failures"]) == (1, [])


def test_colours_of_an_uploaded_mask_are_not_mixed_when_it_is_scaled(gateway: Gateway) -> None:
    colours = np.array([(0x80, 0x40, 0x80), (0, 0, 0x8E)], np.uint8)
    image, mask = large(3), encode(colours[np.arange(600 * 300).reshape(300, 600) // 7 % 2])
    put(gateway, image)
    put(gateway, mask, mask="true")
    digests = {"digest": hashlib.sha256(image).hexdigest(), "mask": hashlib.sha256(mask).hexdigest(), "name": "a.png"}
    masks = {"classes": [{"name": "road", "colour": "#804080"}, {"name": "car", "colour": "#00008e"}]}
    reply = gateway.client.post("/jobs", json={**GENERATE, "masks": masks, "images": [digests]})
    assert reply.status_code == 202, reply.text
    assert (reply.json()["labelled"], reply.json()["failures"]) == (1, [])


def test_the_command_line_reports_scaling_before_and_after_submitting(gateway: Gateway, tmp_path: Path) -> None:
    archive = tmp_path / "set.zip"
    archive.write_bytes(zipped({"a.png": large()}))
    loose = tmp_path / "loose.png"
    loose.write_bytes(large(7))
    common = ["--task", "classify the vehicle", "--no-models", "--url", str(gateway.client.base_url)]
    dry = CliRunner().invoke(app, ["submit", str(archive), *common, "--dry-run"])
    unsent = CliRunner().invoke(app, ["submit", str(loose), *common, "--dry-run"])
    sent = CliRunner().invoke(app, ["submit", str(loose), *common])
    assert [result.exit_code for result in (dry, unsent, sent)] == [0, 0, 0], (dry.output, unsent.output, sent.output)
    for result in (dry, unsent, sent):
        assert f"{SIDE} pixels" in result.output
