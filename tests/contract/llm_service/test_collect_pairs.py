"""Collecting pairs from an OpenAI-compatible server that fails on demand."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from llm_service.pairs import Pair, read_lines
from shared.problems import DependencyFailed
from tests.support.language_servers import listening
from tests.support.pair_collection import collect_pairs


class SmallServer:
    """Answers every question in a key order of its own, with white space; refuses or fails as it is told."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.wrong: set[str] = set()
        self.lives = 1_000
        self.app = FastAPI()
        self.app.post("/chat/completions")(self.complete)

    async def complete(self, request: Request) -> Response:
        content = (await request.json())["messages"][-1]["content"]
        self.prompts.append(content)
        if len(self.prompts) > self.lives:
            return JSONResponse({"error": "gone"}, 404)
        text = "no JSON" if content in self.wrong else '{ "to": "in hail",\n "from": "in the rain" }'
        return JSONResponse({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


def test_replies_are_written_as_the_service_will_write_them(tmp_path: Path) -> None:
    with listening(SmallServer().app) as url:
        collect_pairs(url, 1, tmp_path / "pairs.jsonl")
    (pair,) = read_lines(tmp_path / "pairs.jsonl", Pair)
    assert pair.reply == '{"from":"in the rain","to":"in hail"}'


def test_a_stopped_collection_resumes(tmp_path: Path) -> None:
    server, path = SmallServer(), tmp_path / "pairs.jsonl"
    server.lives = 4
    with listening(server.app) as url:
        with pytest.raises(DependencyFailed):
            collect_pairs(url, 10, path, at_once=1)
        first = list(read_lines(path, Pair))
        assert len(first) == 4
        path.write_text(path.read_text() + first[0].model_dump_json()[:40])  # as a crash would leave it
        server.lives, before = 1_000, len(server.prompts)
        assert collect_pairs(url, 10, path) == 0
        assert len(server.prompts) == before + 6
        assert collect_pairs(url, 10, path) == 0
        assert len(server.prompts) == before + 6
    pairs = list(read_lines(path, Pair))
    assert pairs[:4] == first
    assert len({pair.question for pair in pairs}) == len(pairs) == 10


def test_questions_without_a_valid_reply_are_counted_and_asked_again(tmp_path: Path) -> None:
    server, path = SmallServer(), tmp_path / "pairs.jsonl"
    server.wrong = {"Caption: bus 1 in the rain"}
    with listening(server.app) as url:
        assert collect_pairs(url, 3, path) == 1
        assert len(list(read_lines(path, Pair))) == 2
        server.wrong.clear()
        assert collect_pairs(url, 3, path) == 0
    assert len(list(read_lines(path, Pair))) == 3
