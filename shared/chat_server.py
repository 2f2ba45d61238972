"""A client of any OpenAI-compatible server: chat completions with bounded retries, and scored prompts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence

import httpx
from pydantic import BaseModel, JsonValue, ValidationError

from shared.http_statuses import RETRIED, refuses_content
from shared.problems import DeadlineExceeded, DependencyFailed, InvalidInput
from shared.weights import Server

ATTEMPTS = 3
_LONGEST_PAUSE = 10.0


class Completion(BaseModel):
    """One reply. `finished` is False when the server cut it off at the token limit."""

    text: str
    finished: bool
    prompt_tokens: int
    completion_tokens: int


class _Reply(BaseModel):
    class Turn(BaseModel):
        class Written(BaseModel):
            content: str | None = None

        message: Written
        finish_reason: str | None = None

    class Usage(BaseModel):
        prompt_tokens: int = 0
        completion_tokens: int = 0

    choices: list[Turn]
    usage: Usage = Usage()


class _ScoredReply(BaseModel):
    class ScoredText(BaseModel):
        class Logprobs(BaseModel):
            token_logprobs: list[float | None]

        logprobs: Logprobs | None = None

    choices: list[ScoredText]


class ChatServer:
    """Sends requests to `server`, at most `server.concurrency` at a time; connection errors are retried."""

    def __init__(self, server: Server, transport: httpx.AsyncBaseTransport | None = None) -> None:
        key = os.environ.get(server.api_key_variable, "") if server.api_key_variable else ""
        if server.api_key_variable and not key:
            raise ValueError(f"set the environment variable {server.api_key_variable} to the key of {server.url}")
        self.server = server
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._transport = transport
        self._slots = asyncio.Semaphore(server.concurrency)

    async def complete(
        self,
        messages: Sequence[Mapping[str, JsonValue]],
        options: Mapping[str, JsonValue],
        deadline: float,
    ) -> Completion:
        """`POST /chat/completions`. Raises DeadlineExceeded, InvalidInput (the server's refusal), DependencyFailed."""
        body: dict[str, JsonValue] = {"model": self.server.model, "messages": [dict(item) for item in messages]}
        reply = await self._post("/chat/completions", body | dict(options), deadline)
        try:
            parsed = _Reply.model_validate_json(reply)
            choice = parsed.choices[0]
        except (ValidationError, IndexError) as error:
            raise DependencyFailed(f"{self.server.url} did not return a chat completion: {reply[:200]!r}") from error
        return Completion(
            text=choice.message.content or "",
            finished=choice.finish_reason != "length",
            prompt_tokens=parsed.usage.prompt_tokens,
            completion_tokens=parsed.usage.completion_tokens,
        )

    async def score(self, text: str, deadline: float) -> tuple[float, int]:
        """Sum of the natural-log probabilities of all tokens of the text except the first, and their number.

        Uses `/completions` with `echo`, as vLLM offers it; raises DependencyFailed for a server without it.
        """
        body: dict[str, JsonValue] = {"model": self.server.model, "prompt": text, "echo": True}
        reply = await self._post("/completions", body | {"logprobs": 1, "max_tokens": 1, "temperature": 0}, deadline)
        try:
            logprobs = _ScoredReply.model_validate_json(reply).choices[0].logprobs
        except (ValidationError, IndexError):
            logprobs = None
        # With `echo` the first token has no probability (null); the last one is the generated one.
        if logprobs is None or len(logprobs.token_logprobs) < 2 or logprobs.token_logprobs[0] is not None:
            raise DependencyFailed(f"{self.server.url} does not score prompts (`echo` with `logprobs`); vLLM does")
        scored = [value for value in logprobs.token_logprobs[1:-1] if value is not None]
        return sum(scored), len(scored)

    async def _post(self, path: str, body: Mapping[str, JsonValue], deadline: float) -> bytes:
        async with self._slots, self._client() as client:
            for attempt in range(1, ATTEMPTS + 1):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise DeadlineExceeded(f"no reply from {self.server.url} before the deadline")
                try:
                    reply = await client.post(path, json=dict(body), timeout=min(remaining, 600.0))
                except httpx.TimeoutException as error:
                    raise DeadlineExceeded(f"no reply from {self.server.url} before the deadline") from error
                except httpx.TransportError as error:
                    failure, pause = f"{type(error).__name__}: {error}", 0.5 * 2**attempt
                else:
                    if reply.status_code < 300:
                        return reply.content
                    if reply.status_code not in RETRIED:
                        refused = f"{self.server.url} refused ({reply.status_code}): {reply.text[:500]}"
                        raise (InvalidInput if refuses_content(reply.status_code) else DependencyFailed)(refused)
                    failure, pause = f"status {reply.status_code}: {reply.text[:200]}", _pause(reply, attempt)
                if attempt < ATTEMPTS:
                    await asyncio.sleep(max(0.0, min(pause, _LONGEST_PAUSE, deadline - time.monotonic())))
        raise DependencyFailed(f"{self.server.url} failed {ATTEMPTS} times, last: {failure}")

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.server.url, headers=self._headers, transport=self._transport)


def _pause(reply: httpx.Response, attempt: int) -> float:
    stated = reply.headers.get("retry-after", "")
    return float(stated) if stated.isdigit() else 0.5 * 2**attempt
