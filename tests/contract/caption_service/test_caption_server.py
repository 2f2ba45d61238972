"""caption_service in front of an OpenAI-compatible server: what it asks for each caption of each image."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request

from caption_service.app import create_app
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
