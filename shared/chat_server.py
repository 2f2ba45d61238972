"""Chat completions and scored prompts of any OpenAI-compatible server, through OpenAI's client.

Import this module only if the profile names such a server: the client takes half a second to import.
"""

from __future__ import annotations

import math
import os
import re
import time
from asyncio import timeout
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from json import JSONDecodeError

import httpx
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, Omit, omit
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from openai.types.shared_params import ResponseFormatJSONSchema
from pydantic import ValidationError

from shared.completion import Completion
from shared.http_statuses import refuses_content
from shared.problems import DeadlineExceeded, DependencyFailed, InvalidInput, NotFinite
from shared.weights import Server

ATTEMPTS = 3
TOP_LOGPROBS = 10  # tokens among which "yes" and "no" are looked for


class ChatServer:
    """Sends requests to `server`, at most `server.concurrency` at a time.

    A request is sent up to `ATTEMPTS` times. It is repeated after a failed connection and after 408, 409, 429 and 5xx,
    with the delay of `Retry-After`. The deadline ends every call, including its waits.
    """

    def __init__(self, server: Server) -> None:
        key = os.environ.get(server.api_key_variable, "") if server.api_key_variable else ""
        if server.api_key_variable and not key:
            raise ValueError(f"set the environment variable {server.api_key_variable} to the key of {server.url}")
        self.server = server
        # Otherwise the client sends the OpenAI account of the environment to every server.
        self._headers: dict[str, str | Omit] = {"OpenAI-Organization": omit, "OpenAI-Project": omit}
        if not key:
            self._headers["Authorization"] = omit
        limits = httpx.Limits(max_connections=server.concurrency, max_keepalive_connections=0)
        self._client = AsyncOpenAI(
            base_url=server.url,
            api_key=key or "none",
            max_retries=ATTEMPTS - 1,
            timeout=None,
            http_client=httpx.AsyncClient(limits=limits),  # type: ignore[arg-type]  # accepted, but typed for httpx2
        )

    async def complete(
        self,
        messages: Iterable[ChatCompletionMessageParam],
        deadline: float,
        *,
        temperature: float,
        seed: int,
        max_tokens: int,
        min_tokens: int = 0,
        json_schema: dict[str, object] | None = None,
    ) -> Completion:
        """`POST /chat/completions`. Raises DeadlineExceeded, InvalidInput (the server's refusal), DependencyFailed.

        `min_tokens` is an extension of vLLM and others; a server that lacks it says so.
        """
        async with self._problems(deadline):
            reply = await self._client.chat.completions.create(
                model=self.server.model,
                messages=messages,
                temperature=temperature,
                seed=seed,
                max_tokens=max_tokens,
                response_format=omit if json_schema is None else _constrained_to(json_schema),
                extra_body={"min_tokens": min_tokens} if min_tokens else None,
                extra_headers=self._headers,
            )
        return self._completion(reply)

    def _completion(self, reply: ChatCompletion) -> Completion:
        try:
            choice, usage = reply.choices[0], reply.usage
            return Completion(
                text=choice.message.content or "",
                finished=choice.finish_reason != "length",
                prompt_tokens=usage.prompt_tokens if usage else 0,
                completion_tokens=usage.completion_tokens if usage else 0,
            )
        except (*_UNREADABLE, ValidationError) as error:
            raise DependencyFailed(f"{self.server.url} did not return a chat completion: {str(reply)[:200]}") from error

    async def score(self, text: str, deadline: float) -> tuple[float, int]:
        """Sum of the natural-log probabilities of all tokens of the text except the first, and their number.

        Uses `/completions` with `echo`, as vLLM offers it; raises DependencyFailed for a server without it, and
        NotFinite.
        """
        async with self._problems(deadline):
            reply = await self._client.completions.create(
                model=self.server.model,
                prompt=text,
                echo=True,
                logprobs=1,
                max_tokens=1,
                temperature=0,
                extra_headers=self._headers,
            )
        try:
            logprobs = reply.choices[0].logprobs
            values: Sequence[float | None] = (logprobs and logprobs.token_logprobs) or ()
        except _UNREADABLE:
            values = ()
        # With `echo` the first token has no probability (null); the last one is the generated one.
        if len(values) < 2 or values[0] is not None:
            raise DependencyFailed(f"{self.server.url} does not score prompts (`echo` with `logprobs`); vLLM does")
        scored = [value for value in values[1:-1] if value is not None]
        try:
            total = sum(scored)
        except TypeError as error:
            raise DependencyFailed(f"{self.server.url} returned log-probabilities that are no numbers") from error
        if not math.isfinite(total):
            raise NotFinite(f"{self.server.url} returned log-probabilities with NaN or infinity")
        return total, len(scored)

    async def yes(self, messages: Iterable[ChatCompletionMessageParam], deadline: float) -> float:
        """The probability of "yes" against "no" as the first word of a reply, 0 to 1; raises as `complete` does.

        From the log-probabilities of the first token where the server returns them, else 0 or 1 by the word itself;
        0.5 if the reply is neither.
        """
        async with self._problems(deadline):
            reply = await self._client.chat.completions.create(
                model=self.server.model,
                messages=messages,
                temperature=0,
                seed=0,
                max_tokens=8,
                logprobs=True,
                top_logprobs=TOP_LOGPROBS,
                extra_headers=self._headers,
            )
        completion = self._completion(reply)
        probabilities = {True: 0.0, False: 0.0}
        for token, logprob in _first_tokens(reply) or [(completion.text, 0.0)]:
            answer = _yes_or_no(token)
            if answer is not None:
                probabilities[answer] += math.exp(min(logprob, 0.0))
        total = sum(probabilities.values())
        return probabilities[True] / total if total > 0 else 0.5

    @asynccontextmanager
    async def _problems(self, deadline: float) -> AsyncIterator[None]:
        """Translate the client's errors and an expired deadline into problems."""
        url = self.server.url
        try:
            async with timeout(deadline - time.monotonic()):
                yield
        except TimeoutError as error:
            raise DeadlineExceeded(f"no reply from {url} before the deadline") from error
        except APIStatusError as error:
            refused = f"{url} refused ({error.status_code}): {error.response.text[:500]}"
            raise (InvalidInput if refuses_content(error.status_code) else DependencyFailed)(refused) from error
        except APIConnectionError as error:
            raise DependencyFailed(f"{url} failed {ATTEMPTS} times, last: {error.__cause__ or error}") from error
        except JSONDecodeError as error:
            raise DependencyFailed(f"{url} did not return JSON: {error}") from error


# The client does not validate replies: any part of one may be missing or of another type.
_UNREADABLE = (AttributeError, IndexError, TypeError)


def _first_tokens(reply: ChatCompletion) -> list[tuple[str, float]]:
    """The likeliest first tokens that are a word, with their log-probabilities; empty if the server returns none."""
    try:
        positions = (reply.choices[0].logprobs and reply.choices[0].logprobs.content) or []
        for position in positions:
            if position.token.strip():  # a server may begin with a space or a line break
                return [(token.token, float(token.logprob)) for token in position.top_logprobs]
    except (*_UNREADABLE, ValueError):
        return []
    return []


def _yes_or_no(text: str) -> bool | None:
    word = re.match(r"\W*(yes|no)\b", text, re.IGNORECASE)
    return None if word is None else word[1].lower() == "yes"


def _constrained_to(schema: dict[str, object]) -> ResponseFormatJSONSchema:
    return {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}
