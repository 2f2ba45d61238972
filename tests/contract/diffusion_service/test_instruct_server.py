"""Instructed edits by a server with `/v1/images/edits`: a real HTTP server that edits pictures, or answers badly."""

from __future__ import annotations

import asyncio
import base64
import io
import time
from collections.abc import Callable, Coroutine
from typing import Any

import cv2
import numpy as np
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from PIL import Image
from starlette.datastructures import UploadFile

from diffusion_service.editors.corruptions import corrupt
from diffusion_service.editors.image_server import MOST_BYTES, ImageServer
from diffusion_service.instruct import ServerEngine
from shared.media.images import Pixels, encode
from shared.problems import DeadlineExceeded, DependencyFailed, InvalidInput, Problem, UnusableReply
from shared.profiles.instruct import InstructServer
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import Corruption, InstructedEdit, InstructRequest
from shared.service.openai_connection import ATTEMPTS
from shared.service.openai_connection import MOST_BYTES as TEXT_BYTES
from tests.support.diffusion_requests import photo, pixels
from tests.support.language_servers import listening

SOURCE = pixels(photo(330, 200))
MULTIPLE = 32  # of the peer's sizes, as of Qwen-Image-Edit's


class EditingServer:
    """Puts fog into every picture, at sizes in multiples of 32. `answers` go first, one per request."""

    def __init__(self, *answers: Response) -> None:
        self.answers = list(answers)
        self.forms: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.requests = 0
        self.seconds = 0.0
        self.app = FastAPI()
        self.app.post("/v1/images/edits")(self.edit)

    async def edit(self, request: Request) -> Response:
        self.requests += 1
        self.keys.append(request.headers.get("authorization", ""))
        await asyncio.sleep(self.seconds)
        if self.answers:
            return self.answers.pop(0)
        async with request.form() as form:
            fields: dict[str, Any] = {
                name: await value.read() if isinstance(value, UploadFile) else value for name, value in form.items()
            }
        self.forms.append(fields)
        if "weapon" in fields["prompt"]:
            return JSONResponse({"error": {"message": "refused by policy"}}, 400)
        source = np.asarray(Image.open(io.BytesIO(fields["image"])))
        foggy = corrupt(source, Corruption(kind="fog", severity=3, seed=int(fields["seed"])))
        size = tuple(max(MULTIPLE, round(side / MULTIPLE) * MULTIPLE) for side in (source.shape[1], source.shape[0]))
        return picture(cv2.resize(foggy, size))


def picture(image: Pixels) -> Response:
    return answer([{"b64_json": base64.b64encode(encode(np.ascontiguousarray(image))).decode()}])


def answer(data: object) -> Response:
    return JSONResponse({"created": 0, "data": data})


def profile_at(url: str, **changes: Any) -> InstructServer:
    server = {"url": f"{url}/v1", "model": "editor", "revision": "1", "licence": "none", "gigabytes": 1}
    return InstructServer.model_validate({"engine": "server", "server": server | changes.pop("server", {})} | changes)


def run_against(peer: EditingServer, use: Callable[[InstructServer], Coroutine[Any, Any, Any]], **changes: Any) -> Any:
    with listening(peer.app) as url:
        return asyncio.run(use(profile_at(url, **changes)))


async def edited(profile: InstructServer, seconds: float = 60.0, keep: Pixels | None = None) -> Pixels:
    values: dict[Any, int | float] = {"seed": 7, "steps": 4, "guidance": 2.5}
    return await ImageServer(profile).edit(SOURCE, keep, "let there be fog", values, time.monotonic() + seconds)


def test_a_picture_comes_back_at_the_sources_size() -> None:
    peer = EditingServer()
    image = run_against(peer, edited)
    assert image.shape == SOURCE.shape
    expected = corrupt(SOURCE, Corruption(kind="fog", severity=3, seed=7)).astype(float)
    assert np.abs(image - expected).mean() < np.abs(SOURCE - expected).mean() / 2, "the peer's fog, resized and back"
    (form,) = peer.forms
    assert (form["prompt"], form["model"], form["n"]) == ("let there be fog", "editor", "1")
    assert (form["seed"], form["num_inference_steps"], form["guidance_scale"]) == ("7", "4", "2.5")
    assert (form["response_format"], form["output_format"], peer.keys) == ("b64_json", "png", [""])
    assert "mask" not in form
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(form["image"]))), SOURCE)


def test_photographs_are_sent_at_the_profiles_resolution() -> None:
    peer = EditingServer()
    keep = np.zeros(SOURCE.shape[:2], np.uint8)
    keep[40:120, 50:200] = 255
    image = run_against(peer, lambda profile: edited(profile, keep=keep), resolution=128)
    assert image.shape == SOURCE.shape
    assert np.array_equal(image[keep > 0], SOURCE[keep > 0]), "at the source's own sharpness"
    (form,) = peer.forms
    sizes = [Image.open(io.BytesIO(form[name])).size for name in ("image", "mask")]
    assert sizes == [(160, 96)] * 2


def test_a_server_that_ignores_the_mask_changes_no_kept_pixel() -> None:
    keep = np.zeros(SOURCE.shape[:2], np.uint8)
    keep[40:120, 50:200] = 255
    image = run_against(EditingServer(), lambda profile: edited(profile, keep=keep))
    assert np.array_equal(image[keep > 0], SOURCE[keep > 0])
    assert np.abs(image[keep == 0].astype(float) - SOURCE[keep == 0]).mean() > 5, "the peer's fog"


def test_keys_fields_and_options_are_the_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR_KEY", "secret")
    peer = EditingServer()
    keep = np.zeros(SOURCE.shape[:2], np.uint8)
    keep[:, :100] = 255
    run_against(
        peer,
        lambda profile: edited(profile, keep=keep),
        server={"api_key_variable": "EDITOR_KEY"},
        fields={"seed": "seed", "guidance": "true_cfg_scale"},
        options={"output_format": "png"},
    )
    (form,) = peer.forms
    assert peer.keys == ["Bearer secret"]
    assert (form["true_cfg_scale"], form["output_format"]) == ("2.5", "png")
    assert {"num_inference_steps", "response_format"}.isdisjoint(form)
    alpha = np.asarray(Image.open(io.BytesIO(form["mask"])))[..., 3]
    assert np.array_equal(alpha, keep), "transparent is what the server edits"
    monkeypatch.delenv("EDITOR_KEY")
    with pytest.raises(ValueError, match="EDITOR_KEY"):
        ImageServer(profile_at("http://127.0.0.1:9", server={"api_key_variable": "EDITOR_KEY"}))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_failures_are_tried_again(status: int) -> None:
    peer = EditingServer(Response(status_code=status, headers={"Retry-After": "0.01"}))
    assert run_against(peer, edited).shape == SOURCE.shape
    assert peer.requests == 2


WIDE = picture(np.zeros((48, 400, 3), np.uint8))
DATED = answer([{"url": "http://127.0.0.1:9/edited.png"}])
GARBAGE = answer([{"b64_json": base64.b64encode(b"GIF89a and no picture").decode()}])


@pytest.mark.parametrize(
    ("reply", "problem", "requests", "message"),
    [
        (Response(status_code=429, headers={"Retry-After": "0.01"}), DependencyFailed, ATTEMPTS, "429"),
        (Response(status_code=409, headers={"Retry-After": "0.01"}), DependencyFailed, ATTEMPTS, "409"),
        (Response(status_code=500), DependencyFailed, ATTEMPTS, "500"),
        (Response(status_code=401), DependencyFailed, 1, "401"),
        (JSONResponse({"error": "no pictures of this"}, 400), InvalidInput, 1, "no pictures of this"),
        (WIDE, DependencyFailed, 1, "400 × 48"),
        (DATED, DependencyFailed, 1, "b64_json"),
        (GARBAGE, DependencyFailed, 1, "no image that can be read"),
        (answer([{"b64_json": "%%%"}]), DependencyFailed, 1, "no image that can be read"),
        (answer([]), DependencyFailed, 1, "b64_json"),
        (JSONResponse({"detail": "nothing"}), DependencyFailed, 1, r"b64_json.*nothing"),
        (Response("<html>", media_type="text/html"), DependencyFailed, 1, "b64_json"),
    ],
)
def test_bad_replies_are_problems(reply: Response, problem: type[Problem], requests: int, message: str) -> None:
    peer = EditingServer(*[reply] * ATTEMPTS)
    with pytest.raises(problem, match=message):
        run_against(peer, edited)
    assert peer.requests == requests


def test_an_image_may_come_as_a_data_url() -> None:
    source = base64.b64encode(encode(SOURCE)).decode()
    peer = EditingServer(answer([{"b64_json": f"data:image/png;base64,{source}"}]))
    assert np.array_equal(run_against(peer, edited), SOURCE)


def test_an_unusable_reply_refuses_its_edit_if_another_edit_has_an_image() -> None:
    request = InstructRequest(
        source=ImagePayload(png=encode(SOURCE)),
        edits=[InstructedEdit(instruction=text, seed=1) for text in ("let there be fog", "more fog")],
    )

    async def use(profile: InstructServer) -> Any:
        return await ServerEngine(profile).edit(request, SOURCE, None, time.monotonic() + 60)

    one, other = run_against(EditingServer(DATED), use).images
    assert "b64_json" in (one if isinstance(one, str) else other)
    with pytest.raises(UnusableReply, match=r"http://127\.0\.0\.1:\d+/v1 .*b64_json"):
        run_against(EditingServer(DATED, DATED), use)


@pytest.mark.slow
def test_a_reply_may_be_as_large_as_the_largest_image() -> None:
    noise_png = 52_000_000 * 3  # bytes; a PNG of noise is no smaller than its pixels
    assert noise_png * 4 / 3 < MOST_BYTES
    longer = Response(b'{"data": [' + b" " * TEXT_BYTES + b"]}", media_type="application/json")
    with pytest.raises(DependencyFailed, match="b64_json"):
        run_against(EditingServer(longer), edited)


def test_the_deadline_ends_a_slow_edit() -> None:
    peer = EditingServer()
    peer.seconds = 30.0
    with pytest.raises(DeadlineExceeded):
        run_against(peer, lambda profile: edited(profile, seconds=0.5))


def test_a_refused_edit_leaves_the_others() -> None:
    request = InstructRequest(
        source=ImagePayload(png=encode(SOURCE)),
        edits=[
            InstructedEdit(instruction=text, seed=seed)
            for text, seed in (("let there be fog", 1), ("add a weapon", 2), ("more fog", 3))
        ],
    )

    async def use(profile: InstructServer) -> Any:
        return await ServerEngine(profile).edit(request, SOURCE, None, time.monotonic() + 60)

    foggy, refused, other = run_against(EditingServer(), use).images
    assert (foggy.shape, other.shape) == (SOURCE.shape, SOURCE.shape)
    assert "refused by policy" in refused
