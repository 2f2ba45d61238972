"""Collect caption-edit pairs from any OpenAI-compatible server, for `train_perturber`.

    python -m llm_service.collect_pairs questions.jsonl pairs.jsonl --url http://127.0.0.1:8012/v1 --model NAME

Each line of `questions.jsonl` is a request of `POST /v1/generate`: messages, json_schema, and optionally temperature,
max_tokens and seed. A reply that does not satisfy the schema is requested once more and then left out. Each pair is
written as soon as it is received. When the command is started again, it sends only the questions without a pair.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from llm_service.engines.openai import RemoteLanguageModel
from llm_service.generation import generate
from llm_service.pairs import BadLine, Pair, digest_of, in_order, read_lines
from shared.problems import GenerationFailed, Problem
from shared.profiles.weights import Server
from shared.schemas.language import GenerateRequest
from shared.service.chat_server import ChatServer


def main() -> None:
    """Collect pairs as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, help="JSONL of requests")
    parser.add_argument("pairs", type=Path, help="JSONL to write or to continue")
    parser.add_argument("--url", required=True, help="the API's root: http://host:8000/v1")
    parser.add_argument("--model", required=True, help="the server's name of its model")
    parser.add_argument("--key-variable", default="", help="environment variable that holds the API key")
    parser.add_argument("--at-once", type=int, default=16, help="requests in flight")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a question, both attempts together")
    options = parser.parse_args()
    try:
        server = Server(
            url=options.url, model=options.model, revision="", licence="", gigabytes=1,
            api_key_variable=options.key_variable, concurrency=options.at_once,
        )  # fmt: skip
        requests = list(read_lines(options.questions, GenerateRequest))
        failed = asyncio.run(collect(ChatServer(server), requests, options.pairs, options.timeout))
    except (BadLine, OSError, Problem, ValueError) as error:
        sys.exit(f"{error}\n{options.pairs} keeps the collected pairs; run the same command again to continue.")
    if failed:
        sys.exit(f"{failed} of {len(requests)} questions have no valid reply; run the same command to send them again.")


async def collect(server: ChatServer, requests: Sequence[GenerateRequest], path: Path, timeout: float) -> int:
    """Send the questions that have no pair in `path` yet and append each reply; return the number without a reply.

    `timeout` is in seconds, starting when a question is sent. Raises Problem when the server fails; the file then has
    the pairs received before.
    """
    answered = _resume(path)
    open_questions = {name: request for request in requests if (name := digest_of(request)) not in answered}
    print(f"{len(requests)} questions, {len(requests) - len(open_questions)} of them answered before", file=sys.stderr)
    model, slots = RemoteLanguageModel(server), asyncio.Semaphore(server.server.concurrency)

    async def ask(name: str, request: GenerateRequest) -> bool:
        async with slots:
            try:
                reply = await generate(model, request, time.monotonic() + timeout)
            except GenerationFailed as problem:
                print(f"{name}: {problem.detail}", file=sys.stderr)
                return False
        value = in_order(reply.value, request.json_schema)
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        file.write(Pair(messages=request.messages, reply=text, question=name).model_dump_json() + "\n")
        file.flush()
        return True

    with path.open("a", encoding="utf-8") as file:
        tasks = [asyncio.ensure_future(ask(name, request)) for name, request in open_questions.items()]
        try:
            return sum(not succeeded for succeeded in await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # no task may write after the file is closed


def _resume(path: Path) -> set[str]:
    """Return the questions that have a pair. An incomplete last line, left by a crash, is cut off."""
    if not path.exists():
        return set()
    whole = path.read_bytes()
    if not whole.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(whole.rfind(b"\n") + 1)
    return {pair.question for pair in read_lines(path, Pair)}


if __name__ == "__main__":
    main()
