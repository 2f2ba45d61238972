"""Pairs collected from a real llama.cpp server."""

from __future__ import annotations

import json
from pathlib import Path

from llm_service.pairs import Pair, digest_of, read_lines
from tests.support.llama_cpp import llama_cpp_server, write_gguf
from tests.support.pair_collection import collect_pairs, questions
from tests.support.small_models import save_llama


def test_llama_cpp_gives_pairs_that_satisfy_the_schema(tmp_path: Path) -> None:
    with llama_cpp_server(write_gguf(save_llama(tmp_path / "language"), tmp_path / "small.gguf")) as url:
        assert collect_pairs(url, 3, tmp_path / "pairs.jsonl") == 0
    pairs = list(read_lines(tmp_path / "pairs.jsonl", Pair))
    assert {pair.question for pair in pairs} == {digest_of(question) for question in questions(3)}
    for pair in pairs:
        assert json.loads(pair.reply)["to"] in ("in hail", "at night")
        assert pair.messages[0].content.startswith("Caption: bus")
