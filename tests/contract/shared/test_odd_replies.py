"""Replies of language servers that cannot be parsed or stored: a typed problem, or a text without the characters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Response

import caption_service.app
import llm_service.app
from shared.media.images import encode
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.service.settings import ServiceSettings
from tests.support.language_requests import generate_request
from tests.support.language_servers import listening
from tests.support.serving import serving
from tests.support.small_profile import write_profile

PHRASE = '{"keywords":[{"phrase":"%s","factor":"weather"}],"sure":true}'


def server_that_writes(text: str) -> FastAPI:
    """A server whose every completion is this text."""
    body = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})
    app = FastAPI()
    app.post("/v1/chat/completions")(lambda: Response(body, media_type="application/json"))
    return app


def answer(
    create_app: Callable[[ServiceSettings], FastAPI], folder: Path, written: str, path: str, body: str
) -> httpx.Response:
    async def main(url: str) -> httpx.Response:
        profile = write_profile(folder, url=f"{url}/v1")
        async with serving(create_app(ServiceSettings(profile=str(profile), device="cpu", threads=1))) as client:
            return await client.post(path, content=body)

    with listening(server_that_writes(written)) as url:
        return asyncio.run(main(url))


@pytest.mark.parametrize(
    "written",
    [
        "[" * 200_000,
        "[" * 50_000 + "]" * 50_000,
        '{"keywords":' + "1" * 5_000 + "}",
        '{"keywords":[],"sure":NaN}',
        PHRASE % r"su\u0000nny",
        PHRASE % r"su\ud800nny",
        PHRASE % ("x" * 1_000_000),
        PHRASE % "sunny" + " " * 1_000_000,
    ],
    ids=["open lists", "deep lists", "long number", "NaN", "U+0000", "half a pair", "a megabyte", "blanks"],
)
def test_a_reply_that_cannot_be_used_is_a_failed_generation(tmp_path: Path, written: str) -> None:
    body = generate_request("A bus.").model_dump_json()
    reply = answer(llm_service.app.create_app, tmp_path, written, "/v1/generate", body)
    document = reply.json()
    assert (reply.status_code, document["type"]) == (502, "urn:contrafact:problem:generation-failed")
    assert len(document["faults"]) == 2
    assert max(map(len, document["faults"])) <= 300


@pytest.mark.parametrize("around", ["Here is the JSON: %s", "Sure!\n```json\n%s\n```\nAnything else?"])
def test_json_within_prose_is_read(tmp_path: Path, around: str) -> None:
    body = generate_request("A bus.").model_dump_json()
    reply = answer(llm_service.app.create_app, tmp_path, around % (PHRASE % "sunny"), "/v1/generate", body)
    assert reply.status_code == 200, reply.text
    assert (reply.json()["value"]["sure"], reply.json()["attempts"]) == (True, 1)


@pytest.mark.parametrize(("choices", "status"), [([], 502), ([{"message": {"content": PHRASE % "sunny"}}], 200)])
def test_a_tgi_reply_without_choices_or_usage(tmp_path: Path, choices: list[object], status: int) -> None:
    async def main(url: str) -> httpx.Response:
        profile = write_profile(tmp_path, language_engine="tgi", url=url)
        async with serving(llm_service.app.create_app(ServiceSettings(profile=str(profile), device="cpu"))) as client:
            return await client.post("/v1/generate", content=generate_request("A bus.").model_dump_json())

    app = FastAPI()
    app.post("/{path:path}")(lambda: {"choices": choices, "usage": None})
    with listening(app) as url:
        reply = asyncio.run(main(url))
    assert reply.status_code == status, reply.text
    if status == 502:
        assert "did not return a chat completion" in reply.json()["detail"]


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_a_caption_has_no_character_that_cannot_be_stored(tmp_path: Path, character: str) -> None:
    image = ImagePayload(png=encode(np.zeros((8, 8, 3), np.uint8)))
    body = CaptionRequest(images=[image]).model_dump_json()
    written = f"A red{character} bus."
    reply = answer(caption_service.app.create_app, tmp_path, written, "/v1/captions", body)
    assert reply.status_code == 200, reply.text
    assert CaptionReply.model_validate_json(reply.content).captions == ["A red\N{REPLACEMENT CHARACTER} bus."]
