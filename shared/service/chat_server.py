"""Chat completions and scored prompts of any OpenAI-compatible server, through OpenAI's client.

Import this module only if the profile names such a server: the client takes half a second to import.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from openai import omit
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam
from openai.types.shared_params import ResponseFormatJSONSchema
from pydantic import ValidationError

from shared.problems import DependencyFailed, NotFinite
from shared.profiles.weights import Server
from shared.schemas.evaluation import Unanswered
from shared.service.completion import Completion
from shared.service.openai_connection import OpenAIConnection, as_sent
from shared.service.server_replies import answer_in, count_unusable, fault_of, reasoning_length

TOP_LOGPROBS = 10  # tokens among which "yes" and "no" are looked for


class ChatServer:
    """Sends requests to `server`, repeated as `OpenAIConnection` does. The deadline ends every call."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._connection = OpenAIConnection(server)

    async def complete(
        self,
        messages: Iterable[ChatCompletionMessageParam],
        deadline: float,
        *,
        temperature: float,
        seed: int,
        max_tokens: int,
        min_tokens: int = 0,
        top_p: float = 1.0,
        json_schema: dict[str, object] | None = None,
    ) -> Completion:
        """`POST /chat/completions`. Raises DeadlineExceeded, InvalidInput (the server's refusal), DependencyFailed.

        `min_tokens` is an extension of vLLM and others; a server that lacks it says so.
        """
        async with self._connection.problems(deadline):
            reply = await self._connection.client.chat.completions.create(
                model=self.server.model,
                messages=messages,
                temperature=temperature,
                top_p=top_p if top_p < 1 else omit,
                seed=seed,
                max_tokens=max_tokens,
                response_format=omit if json_schema is None else _response_format(json_schema),
                extra_body={"min_tokens": min_tokens} if min_tokens else None,
                extra_headers=self._connection.headers,
            )
        return self._completion(reply)

    def _completion(self, reply: ChatCompletion) -> Completion:
        try:
            choice, usage = reply.choices[0], reply.usage
            message = choice.message
            return Completion(
                text=answer_in(message.content or ""),
                instead="" if message.content else _instead(message),
                finished=choice.finish_reason != "length",
                prompt_tokens=usage.prompt_tokens if usage else 0,
                completion_tokens=usage.completion_tokens if usage else 0,
            )
        except (*_UNREADABLE, ValidationError) as error:
            beginning = as_sent(reply)[:200]
            raise DependencyFailed(f"{self.server.url} did not return a chat completion: {beginning}") from error

    async def score(self, text: str, deadline: float) -> tuple[float, int]:
        """Sum of the natural-log probabilities of all tokens of the text except the first, and their number.

        Uses `/completions` with `echo`, as vLLM offers it; raises DependencyFailed for a server without it, and
        NotFinite.
        """
        async with self._connection.problems(deadline):
            reply = await self._connection.client.completions.create(
                model=self.server.model,
                prompt=text,
                echo=True,
                logprobs=1,
                max_tokens=1,
                temperature=0,
                extra_headers=self._connection.headers,
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

    async def answer(
        self,
        messages: Iterable[ChatCompletionMessageParam],
        deadline: float,
        *,
        temperature: float,
        seed: int,
        max_tokens: int,
        top_logprobs: int = TOP_LOGPROBS,
    ) -> tuple[Completion, list[tuple[str, float]]]:
        """A completion, and the likeliest first tokens of its answer with their natural-log probabilities.

        There are none without `top_logprobs`, and of a server that returns none. Raises as `complete` does.
        """
        async with self._connection.problems(deadline):
            reply = await self._connection.client.chat.completions.create(
                model=self.server.model,
                messages=messages,
                temperature=temperature,
                seed=seed,
                max_tokens=max_tokens,
                logprobs=bool(top_logprobs) or omit,
                top_logprobs=top_logprobs or omit,
                extra_headers=self._connection.headers,
            )
        return self._completion(reply), _first_tokens(reply)

    async def choose(
        self, messages: Iterable[ChatCompletionMessageParam], deadline: float, words: tuple[str, str] = ("yes", "no")
    ) -> tuple[float | Unanswered, Completion]:
        """The probability of the first of `words` against the second as an answer's first word, 0 to 1, and the answer.

        From the log-probabilities of the answer's first token where the server returns them and they hold either word,
        else 0 or 1 by the word itself. Of an answer that begins with neither, its fault, which is counted. Raises as
        `complete` does.
        """
        completion, tokens = await self.answer(messages, deadline, temperature=0, seed=0, max_tokens=8)
        for candidates in (tokens, [(completion.text, 0.0)]):
            probabilities = dict.fromkeys(words, 0.0)
            for token, logprob in candidates:
                word = _first_word(token, words)
                if word:
                    probabilities[word] += math.exp(min(logprob, 0.0))
            total = sum(probabilities.values())
            if total > 0:
                return probabilities[words[0]] / total, completion
        fault = fault_of(completion)
        count_unusable(self.server.url, fault)
        return fault, completion


# The client does not validate replies: any part of one may be missing or of another type.
_UNREADABLE = (AttributeError, IndexError, TypeError)


def _instead(message: ChatCompletionMessage) -> str:
    """A message's refusal or reasoning, which some servers send without a text."""
    fields = ("refusal", "reasoning_content", "reasoning")
    return next((text for name in fields if isinstance(text := getattr(message, name, None), str)), "")


def _first_tokens(reply: ChatCompletion) -> list[tuple[str, float]]:
    """The likeliest first tokens of the answer that are a word, with their log-probabilities; empty without any."""
    try:
        positions = (reply.choices[0].logprobs and reply.choices[0].logprobs.content) or []
        unread = reasoning_length("".join(position.token for position in positions))
        for position in positions:
            if unread <= 0 and position.token.strip():  # a server may begin with a space or a line break
                tokens = [(token.token, float(token.logprob)) for token in position.top_logprobs]
                return [] if any(math.isnan(logprob) for _, logprob in tokens) else tokens
            unread -= len(position.token)
    except (*_UNREADABLE, ValueError):
        return []
    return []


def _first_word(text: str, words: Sequence[str]) -> str:
    """Which of the words a text begins with, in lower case; empty if with none."""
    start = rf"\W*(?:(?:the )?answer(?: is)?\W+)?(?:the )?({'|'.join(words)})\b"
    word = re.match(start, text, re.IGNORECASE)
    return "" if word is None else word[1].lower()


def _response_format(schema: dict[str, object]) -> ResponseFormatJSONSchema:
    return {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}
