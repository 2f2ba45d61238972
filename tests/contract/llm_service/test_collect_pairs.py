"""Pairs collected from OpenAI-compatible servers: a real llama.cpp, and a small one that fails where it is told to."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from llm_service.collect_pairs import collect
from llm_service.pairs import Pair, digest_of, read_lines
from shared.chat_server import ChatServer
from shared.problems import DependencyFailed
from shared.schemas.language import GenerateRequest, Message
from shared.weights import Server
from tests.support.language_servers import listening
from tests.support.llama_cpp import llama_cpp_server, write_gguf
from tests.support.small_models import save_llama

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"from": {"enum": ["in the rain"]}, "to": {"enum": ["in hail", "at night"]}},
    "required": ["from", "to"],
    "additionalProperties": False,
}


def questions(count: int) -> list[GenerateRequest]:
    return [
        GenerateRequest(messages=[Message(role="user", content=f"Caption: bus {n} in the rain")], json_schema=SCHEMA)
        for n in range(count)
    ]


def collected(url: str, count: int, path: Path, at_once: int = 4) -> int:
    server = Server(url=url, model="small", revision="", licence="", gigabytes=1, concurrency=at_once)
    return asyncio.run(collect(ChatServer(server), questions(count), path, 60.0))


class SmallServer:
    """Answers every question in a key order of its own, with white space; refuses or fails as it is told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.wrong: set[str] = set()
        self.lives = 1_000
        self.app = FastAPI()
        self.app.post("/chat/completions")(self.complete)

    async def complete(self, request: Request) -> Response:
        content = (await request.json())["messages"][-1]["content"]
        self.asked.append(content)
        if len(self.asked) > self.lives:
            return JSONResponse({"error": "gone"}, 404)
        text = "no JSON" if content in self.wrong else '{ "to": "in hail",\n "from": "in the rain" }'
        return JSONResponse({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


def test_llama_cpp_gives_pairs_that_satisfy_the_schema(tmp_path: Path) -> None:
    with llama_cpp_server(write_gguf(save_llama(tmp_path / "language"), tmp_path / "small.gguf")) as url:
        assert collected(url, 3, tmp_path / "pairs.jsonl") == 0
    pairs = list(read_lines(tmp_path / "pairs.jsonl", Pair))
    assert {pair.question for pair in pairs} == {digest_of(one) for one in questions(3)}
    for pair in pairs:
        assert json.loads(pair.reply)["to"] in ("in hail", "at night")
        assert pair.messages[0].content.startswith("Caption: bus")


def test_replies_are_written_as_the_service_will_write_them(tmp_path: Path) -> None:
    with listening(SmallServer().app) as url:
        collected(url, 1, tmp_path / "pairs.jsonl")
    (pair,) = read_lines(tmp_path / "pairs.jsonl", Pair)
    assert pair.reply == '{"from":"in the rain","to":"in hail"}'


def test_a_collection_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    server, path = SmallServer(), tmp_path / "pairs.jsonl"
    server.lives = 4
    with listening(server.app) as url:
        with pytest.raises(DependencyFailed):
            collected(url, 10, path, at_once=1)
        first = list(read_lines(path, Pair))
        assert len(first) == 4
        path.write_text(path.read_text() + first[0].model_dump_json()[:40])  # as a crash would leave it
        server.lives, asked = 1_000, len(server.asked)
        assert collected(url, 10, path) == 0
        assert len(server.asked) == asked + 6
        assert collected(url, 10, path) == 0
        assert len(server.asked) == asked + 6
    pairs = list(read_lines(path, Pair))
    assert pairs[:4] == first
    assert len({pair.question for pair in pairs}) == len(pairs) == 10


def test_questions_without_a_valid_reply_are_counted_and_asked_again(tmp_path: Path) -> None:
    server, path = SmallServer(), tmp_path / "pairs.jsonl"
    server.wrong = {"Caption: bus 1 in the rain"}
    with listening(server.app) as url:
        assert collected(url, 3, path) == 1
        assert len(list(read_lines(path, Pair))) == 2
        server.wrong.clear()
        assert collected(url, 3, path) == 0
    assert len(list(read_lines(path, Pair))) == 3
