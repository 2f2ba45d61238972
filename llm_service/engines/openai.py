"""Text from any OpenAI-compatible server with `response_format` json_schema (vLLM, SGLang, llama.cpp, ...)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from shared.profiles.profile import Language
from shared.schemas.language import GenerateRequest
from shared.service.completion import Completion
from shared.service.devices import Loading

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

    from shared.service.chat_server import ChatServer


class RemoteLanguageModel:
    """Sends requests to the server, which batches them. The caller validates every reply."""

    def __init__(self, server: ChatServer) -> None:
        self._server = server
        self.name = f"the language model at {server.server.url}"
        self.device = "server"
        self.weights = [server.server.info("language")]

    async def write(self, request: GenerateRequest, deadline: float) -> Completion:
        """One chat completion under the schema."""
        return await self._server.complete(
            [cast("ChatCompletionMessageParam", message.model_dump()) for message in request.messages],
            deadline,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            max_tokens=request.max_tokens,
            json_schema=request.json_schema,
        )

    async def score(self, texts: Sequence[str], deadline: float) -> list[tuple[float, int]]:
        """Score each text by the server's `echo` of log-probabilities; the first token is not scored."""
        tasks = [asyncio.ensure_future(self._server.score(text, deadline)) for text in texts]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()


def connect_openai(loading: Loading[Language]) -> RemoteLanguageModel:
    """Create a client of the profile's server; no weights are loaded."""
    from shared.service.chat_server import ChatServer  # a slow import that only this engine needs

    assert loading.weights.server is not None
    return RemoteLanguageModel(ChatServer(loading.weights.server))
