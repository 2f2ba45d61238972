"""Text from a text-generation-inference server, through huggingface_hub's client and TGI's own grammar format."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from huggingface_hub import AsyncInferenceClient, ChatCompletionOutput
from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]
from pydantic import ValidationError

from shared.problems import DeadlineExceeded, DependencyFailed, InvalidInput, refuses_content
from shared.profiles.profile import Language
from shared.profiles.weights import Server
from shared.schemas.language import GenerateRequest
from shared.service.completion import Completion
from shared.service.devices import Loading
from shared.service.server_replies import answer_in


class TgiLanguageModel:
    """Sends requests to a TGI server, at most `server.concurrency` at a time; the server batches them."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._key = os.environ.get(server.api_key_variable) if server.api_key_variable else None
        self._slots = asyncio.Semaphore(server.concurrency)
        self.name = f"the language model at {server.url}"
        self.device = "server"
        self.weights = [server.info("language")]

    async def write(self, request: GenerateRequest, deadline: float) -> Completion:
        """One chat completion under TGI's JSON grammar. TGI refuses temperature 0, so greedy requests omit it."""
        reply = await self._ask(
            lambda client: client.chat_completion(
                [message.model_dump() for message in request.messages],
                extra_body={"response_format": {"type": "json", "value": request.json_schema}},
                temperature=request.temperature or None,
                top_p=request.top_p if request.top_p < 1 else None,
                seed=request.seed,
                max_tokens=request.max_tokens,
            ),
            deadline,
        )
        return self._completion(reply)

    def _completion(self, reply: ChatCompletionOutput) -> Completion:
        """Any part of a reply may be missing: the client does not check it."""
        try:
            choice, usage = reply.choices[0], reply.usage
            return Completion(
                text=answer_in(choice.message.content or ""),
                finished=choice.finish_reason != "length",
                prompt_tokens=usage.prompt_tokens if usage else 0,
                completion_tokens=usage.completion_tokens if usage else 0,
            )
        except (AttributeError, IndexError, TypeError, ValidationError) as error:
            message = f"{self._server.url} did not return a chat completion: {str(reply)[:200]}"
            raise DependencyFailed(message) from error

    async def score(self, texts: Sequence[str], deadline: float) -> list[tuple[float, int]]:
        """Score each text by TGI's prefill details; the first token has no probability and is not scored."""
        return [await self._score(text, deadline) for text in texts]

    async def _score(self, text: str, deadline: float) -> tuple[float, int]:
        reply = await self._ask(
            lambda client: client.text_generation(text, details=True, decoder_input_details=True, max_new_tokens=1),
            deadline,
        )
        scored = [token.logprob for token in reply.details.prefill if token.logprob is not None]
        if not scored:
            raise DependencyFailed(
                f"{self._server.url} does not score prompts; start TGI with --enable-prefill-logprobs"
            )
        return sum(scored), len(scored)

    async def _ask(self, call: Callable[[AsyncInferenceClient], Awaitable[Any]], deadline: float) -> Any:
        remaining = deadline - time.monotonic()
        url, key = self._server.url, self._key or "none"  # without a key the client would send this machine's token
        try:
            async with self._slots, AsyncInferenceClient(base_url=url, api_key=key, timeout=remaining) as client:
                return await call(client)
        except HfHubHTTPError as error:
            status = error.response.status_code
            refused = f"{self._server.url} refused ({status}): {error.response.text[:500]}"
            raise (InvalidInput if refuses_content(status) else DependencyFailed)(refused) from error
        except HTTPError as error:  # raised by the client's HTTP library: no connection, or no reply in time
            if time.monotonic() >= deadline:
                raise DeadlineExceeded(f"no reply from {self._server.url} before the deadline") from error
            raise DependencyFailed(f"{self._server.url} failed: {error}") from error


def connect_tgi(loading: Loading[Language]) -> TgiLanguageModel:
    """Create a client of the profile's server; no weights are loaded. Raises ValueError for a server with `ca_file`."""
    assert loading.weights.server is not None
    if loading.weights.server.ca_file:
        raise ValueError("engine tgi takes no `ca_file`: set SSL_CERT_FILE in its place, or use engine openai")
    return TgiLanguageModel(loading.weights.server)
