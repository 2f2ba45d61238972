"""caption_service in front of an OpenAI-compatible server: what it asks for each caption of each image."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request

from caption_service.app import create_app
from shared.schemas.caption import CaptionRequest
from tests.support.caption_requests import ask, payloads
from tests.support.language_servers import listening
from tests.support.service_settings import settings
from tests.support.serving import serving
from tests.support.small_profile import write_profile


def test_each_caption_of_an_image_is_a_request_with_its_own_seed(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def answer(request: Request) -> dict[str, Any]:
        """The image's address and the seed as the caption, so that the order of the reply shows."""
        body = await request.json()
        bodies.append(body)
        image = body["messages"][0]["content"][0]["image_url"]["url"]
        return {"choices": [{"message": {"content": f"{image} {body['seed']}"}, "finish_reason": "stop"}]}

    async def main(url: str) -> list[str]:
        profile = write_profile(tmp_path, caption_engine="openai", url=f"{url}/v1", model="small")
        async with serving(create_app(settings(profile))) as client:
            return await ask(client, payloads(2), temperature=1.0, top_p=0.9, captions_per_image=2, seed=5)

    with listening(app) as url:
        captions = [caption.rsplit(" ", 1) for caption in asyncio.run(main(url))]
    images, seeds = [image for image, _ in captions], [int(seed) for _, seed in captions]
    assert images[0] == images[1] != images[2] == images[3]
    assert seeds[0] == seeds[2] == 5 != seeds[1] == seeds[3]
    assert len(bodies) == 4
    assert {(body["top_p"], body["temperature"]) for body in bodies} == {(0.9, 1.0)}


@pytest.mark.parametrize(
    ("message", "finish_reason", "outcome"),
    [
        ({"content": "<think>\nhm\n</think>\n\na photo of a bus"}, "stop", "a photo of a bus"),
        ({"content": "```\na photo of a bus\n```"}, "stop", "a photo of a bus"),
        ({"content": "A photo of a bus. It is a b"}, "length", "A photo of a bus."),
        ({"content": "a photo of a b"}, "length", "'a photo of a b'"),
        ({"content": "<think>\nLet me look"}, "length", "'<think> Let me look'"),
        ({"content": None, "reasoning_content": "Let me look"}, "stop", "'Let me look'"),
    ],
    ids=["think", "fence", "sentence", "cut", "thinks", "null"],
)
def test_a_reply_is_a_caption_or_is_refused_with_its_server_and_first_words(
    tmp_path: Path, message: dict[str, Any], finish_reason: str, outcome: str
) -> None:
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def answer() -> dict[str, Any]:
        return {"choices": [{"message": message, "finish_reason": finish_reason}]}

    async def main(url: str) -> None:
        profile = write_profile(tmp_path, caption_engine="openai", url=f"{url}/v1", model="small")
        async with serving(create_app(settings(profile))) as client:
            request = CaptionRequest(images=payloads(1)).model_dump_json()
            reply = await client.post("/v1/captions", content=request)
            counted = f'model="{url}/v1"' in (await client.get("/metrics")).text
        if "'" not in outcome:
            assert reply.json() == {"captions": [outcome]}
            return
        document = reply.json()
        assert document["type"] == "urn:contrafact:problem:unusable-reply"
        assert document["detail"].startswith(f"{url}/v1 ")
        assert document["detail"].endswith(outcome)
        assert counted

    with listening(app) as url:
        asyncio.run(main(url))
