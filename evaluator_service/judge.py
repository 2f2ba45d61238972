"""Yes-or-no questions on images, answered by a vision-language model behind an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

from shared.chunks import chunks
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import JudgeReply, JudgeRequest
from shared.weights import Server

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionUserMessageParam

    from shared.chat_server import ChatServer

_INSTRUCTION = "{} Answer with one word: yes or no."


class RemoteJudge:
    """Sends one request per image and question, several concurrently; the server batches them."""

    def __init__(self, server: ChatServer) -> None:
        self._server = server

    @classmethod
    def connect(cls, server: Server) -> RemoteJudge:
        """A judge behind `server`. Raises ValueError if the environment lacks its key."""
        from shared.chat_server import ChatServer  # a slow import that only a profile with a judge needs

        return cls(ChatServer(server))

    async def judge(self, request: JudgeRequest, deadline: float) -> JudgeReply:
        """P(yes) of every question on every image; raises what `ChatServer.yes` raises."""
        tasks = [
            asyncio.ensure_future(self._yes(image, question, deadline))
            for image in request.images
            for question in request.questions
        ]
        try:
            answers = list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
        return JudgeReply(yes=list(chunks(answers, len(request.questions))))

    async def _yes(self, image: ImagePayload, question: str, deadline: float) -> float:
        url = "data:image/png;base64," + base64.b64encode(image.png).decode()
        message: ChatCompletionUserMessageParam = {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": _INSTRUCTION.format(question)},
            ],
        }
        return await self._server.yes([message], deadline)
