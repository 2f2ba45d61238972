"""The vision-language judge of edits: yes-or-no questions on pictures, to a server that batches them."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, NamedTuple

from shared.chunks import chunks
from shared.profiles.judge_audit import FIRST_OR_SECOND, INSTRUCTION, YES_OR_NO
from shared.profiles.weights import Server
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import JudgeReply, JudgeRequest, TokenUsage, Unanswered

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionContentPartParam

    from shared.service.chat_server import ChatServer


class _Judged(NamedTuple):
    """P(yes), or of the edited picture of a pair, or why there is none; and its tokens, where they are counted."""

    yes: float | Unanswered
    usage: TokenUsage | None


class RemoteJudge:
    """Sends one request per question, several concurrently; of a pair, one for each order."""

    def __init__(self, server: ChatServer) -> None:
        self._server = server

    @classmethod
    def connect(cls, server: Server) -> RemoteJudge:
        """A judge behind `server`. Raises ValueError if the environment lacks its key."""
        from shared.service.chat_server import ChatServer  # a slow import that only a profile with a judge needs

        return cls(ChatServer(server))

    async def judge(self, request: JudgeRequest, deadline: float) -> JudgeReply:
        """The answer to every question on every image; raises what `ChatServer.choose` raises."""
        ask = self._which if request.pairwise else self._yes
        tasks = [
            asyncio.ensure_future(ask(request.beside, image, question, deadline))
            for image in request.images
            for question in request.questions
        ]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        of_images = list(chunks(answers, len(request.questions)))
        usage = [_sum([answer.usage for answer in row]) for row in of_images]
        return JudgeReply(
            yes=[[answer.yes for answer in row] for row in of_images], usage=usage if any(usage) else None
        )

    async def _yes(self, beside: ImagePayload | None, image: ImagePayload, question: str, deadline: float) -> _Judged:
        return await self._ask([image] if beside is None else [beside, image], question, YES_OR_NO, deadline)

    async def _which(self, beside: ImagePayload | None, image: ImagePayload, question: str, deadline: float) -> _Judged:
        assert beside is not None
        first = await self._ask([image, beside], question, FIRST_OR_SECOND, deadline)
        last = await self._ask([beside, image], question, FIRST_OR_SECOND, deadline)
        usage = _sum([first.usage, last.usage])
        for answer in (first, last):
            if isinstance(answer.yes, str):
                return _Judged(answer.yes, usage)
        assert isinstance(first.yes, float)
        assert isinstance(last.yes, float)
        return _Judged((first.yes + 1 - last.yes) / 2, usage)

    async def _ask(self, images: list[ImagePayload], question: str, words: tuple[str, str], deadline: float) -> _Judged:
        shown: list[ChatCompletionContentPartParam] = [
            {
                "type": "image_url",
                "image_url": {"url": "data:image/png;base64," + base64.b64encode(image.png).decode()},
            }
            for image in images
        ]
        text: ChatCompletionContentPartParam = {"type": "text", "text": INSTRUCTION.format(question, *words)}
        yes, completion = await self._server.choose([{"role": "user", "content": [*shown, text]}], deadline, words)
        prompt, answer = completion.prompt_tokens, completion.completion_tokens
        counted = TokenUsage(questions=1, prompt=prompt, completion=answer) if prompt + answer else None
        return _Judged(yes, counted)


def _sum(usages: list[TokenUsage | None]) -> TokenUsage | None:
    counted = [usage for usage in usages if usage is not None]
    return sum(counted[1:], counted[0]) if counted else None
