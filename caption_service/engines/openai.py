"""Captions from an external OpenAI-compatible vision server (vLLM, SGLang, TGI, llama.cpp, ...)."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

from shared.problems import InvalidInput
from shared.profiles.profile import Caption
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionRequest
from shared.service.devices import Loading
from shared.service.server_replies import caption_in

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionUserMessageParam

    from shared.service.chat_server import ChatServer


class RemoteCaptioner:
    """Requests each caption from the server, several concurrently; the server batches them."""

    def __init__(self, server: ChatServer, instruction: str) -> None:
        self._server = server
        self._instruction = instruction
        self.device = "server"
        self.weights = [server.server.info("captioner")]

    async def caption(self, request: CaptionRequest, deadline: float) -> list[str]:
        """Return the captions of the images. The protocol has no beam search, so `beams` above 1 is refused.

        Raises UnusableReply for a reply that is no caption, and what `ChatServer.complete` raises.
        """
        if request.beams > 1:
            raise InvalidInput("an OpenAI-compatible server has no beam search: set beams to 1")
        tasks = [
            asyncio.ensure_future(self._caption(image, request, seed, deadline))
            for image in request.images
            for seed in request.seeds
        ]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _caption(self, image: ImagePayload, request: CaptionRequest, seed: int, deadline: float) -> str:
        url = "data:image/png;base64," + base64.b64encode(image.png).decode()
        question: ChatCompletionUserMessageParam = {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": request.prompt or self._instruction},
            ],
        }
        reply = await self._server.complete(
            [question],
            deadline,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=seed,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
        )
        url = self._server.server.url
        return caption_in(reply.text, finished=reply.finished, server=url, instead=reply.instead)


def connect_openai(loading: Loading[Caption]) -> RemoteCaptioner:
    """Create a client of the profile's server; no weights are loaded."""
    from shared.service.chat_server import ChatServer  # a slow import that only this engine needs

    assert loading.weights.server is not None
    return RemoteCaptioner(ChatServer(loading.weights.server), loading.weights.instruction)
