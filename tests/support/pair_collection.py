"""Questions and answers of the command that collects pairs for training the language model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from llm_service.collect_pairs import collect
from shared.profiles.weights import Server
from shared.schemas.language import GenerateRequest, Message
from shared.service.chat_server import ChatServer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"from": {"enum": ["in the rain"]}, "to": {"enum": ["in hail", "at night"]}},
    "required": ["from", "to"],
    "additionalProperties": False,
}


def questions(count: int) -> list[GenerateRequest]:
    """`count` questions on captions, each with the same schema."""
    return [
        GenerateRequest(messages=[Message(role="user", content=f"Caption: bus {n} in the rain")], json_schema=SCHEMA)
        for n in range(count)
    ]


def collect_pairs(url: str, count: int, path: Path, at_once: int = 4) -> int:
    """Collect replies to `count` questions from the server at `url` into `path`; how many gave no valid reply."""
    server = Server(url=url, model="small", revision="", licence="", gigabytes=1, concurrency=at_once)
    return asyncio.run(collect(ChatServer(server), questions(count), path, 60.0))
