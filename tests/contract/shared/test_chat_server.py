"""The client of OpenAI-compatible servers against a server that answers as each test wants."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from shared.problems import DeadlineExceeded, DependencyFailed, InvalidInput, NotFinite, Problem
from shared.profiles.weights import Server
from shared.service.chat_server import ChatServer
from shared.service.completion import Completion
from shared.service.openai_connection import ATTEMPTS, MOST_BYTES
from tests.support.language_servers import listening

REPLY = {"choices": [{"message": {"content": "a bus"}, "finish_reason": "stop"}]}
ACCOUNT = {
    "OPENAI_API_KEY": "sk-environment",
    "OPENAI_ADMIN_KEY": "sk-admin",
    "OPENAI_ORG_ID": "org-environment",
    "OPENAI_PROJECT_ID": "proj-environment",
    "OPENAI_BASE_URL": "http://127.0.0.1:9/elsewhere",
}


class RecordingServer:
    """Answers every request with `reply` and keeps headers and bodies of the requests."""

    def __init__(self, reply: Response) -> None:
        self.reply = reply
        self.headers: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self.answer)
        self.app.post("/v1/completions")(self.answer)

    async def answer(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.json())
        return self.reply


def server_at(url: str, **changes: Any) -> Server:
    fields = {"url": f"{url}/v1", "model": "small", "revision": "1", "licence": "none", "gigabytes": 1}
    return Server.model_validate(fields | changes)


async def completed(server: ChatServer, seconds: float = 60.0, **changes: Any) -> Completion:
    fields: dict[str, Any] = {"temperature": 0.5, "seed": 3, "max_tokens": 8} | changes
    return await server.complete([{"role": "user", "content": "What is it?"}], time.monotonic() + seconds, **fields)


def run_against(server: RecordingServer, call: Any, **changes: Any) -> Any:
    """The result of `call(ChatServer)` with `server` listening."""

    async def main(url: str) -> Any:
        return await call(ChatServer(server_at(url, **changes)))

    with listening(server.app) as url:
        return asyncio.run(main(url))


def test_a_request_carries_its_parameters_and_the_schema() -> None:
    server, schema = RecordingServer(JSONResponse(REPLY)), {"enum": ["a bus"]}
    reply = run_against(server, lambda chat: completed(chat, min_tokens=2, top_p=0.9, json_schema=schema))
    assert reply == Completion(text="a bus", finished=True, prompt_tokens=0, completion_tokens=0)
    [body] = server.bodies
    assert body == {
        "model": "small",
        "messages": [{"role": "user", "content": "What is it?"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "max_tokens": 8,
        "min_tokens": 2,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "strict": True, "schema": schema},
        },
    }


def test_extensions_are_sent_only_when_asked_for() -> None:
    server = RecordingServer(JSONResponse(REPLY))
    run_against(server, completed)
    assert not {"min_tokens", "top_p", "response_format"} & set(server.bodies[0])


def test_a_reply_cut_off_at_the_limit_is_unfinished() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    choice = {"message": {"content": "a"}, "finish_reason": "length"}
    reply = run_against(RecordingServer(JSONResponse({"choices": [choice], "usage": usage})), completed)
    assert reply == Completion(text="a", finished=False, prompt_tokens=5, completion_tokens=8)


@pytest.mark.parametrize("variable", ["", "SMALL_SERVER_KEY"])
def test_a_server_sees_its_own_key_and_nothing_of_an_account_at_openai(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SMALL_SERVER_KEY", "own-key")
    server = RecordingServer(JSONResponse(REPLY))
    run_against(server, completed, api_key_variable=variable)
    [headers] = server.headers
    assert headers.get("authorization") == ("Bearer own-key" if variable else None)
    assert not [value for value in headers.values() if "environment" in value or "admin" in value]
    assert not {"openai-organization", "openai-project"} & set(headers)


@pytest.mark.parametrize(
    "reply",
    [
        Response("{", media_type="application/json"),
        Response("<html>", media_type="text/html"),
        JSONResponse(None),
        JSONResponse([]),
        JSONResponse({}),
        JSONResponse({"choices": []}),
        JSONResponse({"choices": [{"text": "a bus"}]}),
        JSONResponse({"choices": [{"message": {"content": 5}}]}),
    ],
    ids=["broken", "html", "null", "list", "empty", "no choices", "no message", "number"],
)
def test_what_is_no_completion_is_a_failed_dependency(reply: Response) -> None:
    server = RecordingServer(reply)
    with pytest.raises(DependencyFailed):
        run_against(server, completed)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_reply_is_read_up_to_its_limit(status: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MOST_BYTES // 1024**2 + 1):
            yield b" " * 1024**2

    server = RecordingServer(StreamingResponse(chunks(), status, media_type="application/json"))
    with pytest.raises(DependencyFailed, match="sent more than 67,108,864 bytes"):
        run_against(server, completed)
    assert len(server.bodies) == 1


def test_a_compressed_reply_is_a_failed_dependency() -> None:
    packed = gzip.compress(json.dumps(REPLY).encode())
    server = RecordingServer(Response(packed, headers={"Content-Encoding": "gzip"}, media_type="application/json"))
    with pytest.raises(DependencyFailed, match="Accept-Encoding"):
        run_against(server, completed)
    assert [headers["accept-encoding"] for headers in server.headers] == ["identity"]


@pytest.mark.parametrize(
    ("status", "problem", "requests"),
    [
        (400, InvalidInput, 1),
        (401, DependencyFailed, 1),
        (404, DependencyFailed, 1),
        (409, DependencyFailed, ATTEMPTS),
        (422, InvalidInput, 1),
        (429, DependencyFailed, ATTEMPTS),
        (503, DependencyFailed, ATTEMPTS),
    ],
)
def test_statuses_about_the_moment_are_tried_again(status: int, problem: type[Problem], requests: int) -> None:
    server = RecordingServer(JSONResponse({"error": "the server's own reason"}, status))
    with pytest.raises(problem, match="the server's own reason") as failure:
        run_against(server, completed)
    assert type(failure.value) is problem
    assert len(server.bodies) == requests


def test_a_pause_ends_at_the_deadline() -> None:
    server = RecordingServer(JSONResponse({"error": "busy"}, 503, {"Retry-After": "100"}))
    with pytest.raises(DeadlineExceeded):
        run_against(server, lambda chat: completed(chat, seconds=1.0))
    assert len(server.bodies) == 1


def test_a_server_gets_no_more_requests_at_a_time_than_its_profile_allows() -> None:
    at_once, most, app = 0, 0, FastAPI()
    pairs = asyncio.Barrier(2)

    @app.post("/v1/chat/completions")
    async def answer() -> Response:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await pairs.wait()
        await asyncio.sleep(0.05)
        at_once -= 1
        return JSONResponse(REPLY)

    async def main(url: str) -> list[Completion]:
        chat = ChatServer(server_at(url, concurrency=2))
        return await asyncio.gather(*(completed(chat) for _ in range(8)))

    with listening(app) as url:
        assert len(asyncio.run(main(url))) == 8
    assert most == 2


def test_a_score_is_the_sum_over_the_prompts_tokens() -> None:
    logprobs = {"token_logprobs": [None, -1.5, -0.25, -9.0]}
    server = RecordingServer(JSONResponse({"choices": [{"text": "a bus.", "logprobs": logprobs}]}))
    score = run_against(server, lambda chat: chat.score("a bus", time.monotonic() + 60))
    assert score == (-1.75, 2)
    expected = {"model": "small", "prompt": "a bus", "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    assert server.bodies == [expected]


@pytest.mark.parametrize(
    "choice",
    [{"text": "."}, {"logprobs": {"content": []}}, {"logprobs": {"token_logprobs": [-1.0, -2.0]}}, None],
    ids=["none", "chat's", "no echo", "no choice"],
)
def test_a_server_that_does_not_score_the_prompt_is_a_failed_dependency(choice: dict[str, Any] | None) -> None:
    server = RecordingServer(JSONResponse({"choices": [choice] if choice else []}))
    with pytest.raises(DependencyFailed):
        run_against(server, lambda chat: chat.score("a bus", time.monotonic() + 60))


@pytest.mark.parametrize(
    ("value", "problem"), [("NaN", NotFinite), ("-Infinity", NotFinite), ('"a"', DependencyFailed)]
)
def test_a_log_probability_that_is_no_number_is_a_problem(value: str, problem: type[Problem]) -> None:
    body = '{"choices": [{"logprobs": {"token_logprobs": [null, -1.5, VALUE, -9.0]}}]}'.replace("VALUE", value)
    server = RecordingServer(Response(body, media_type="application/json"))
    with pytest.raises(problem):
        run_against(server, lambda chat: chat.score("a bus", time.monotonic() + 60))


def test_a_missing_key_is_refused_before_any_request() -> None:
    with pytest.raises(ValueError, match="SMALL_SERVER_KEY"):
        ChatServer(server_at("http://127.0.0.1:9", api_key_variable="SMALL_SERVER_KEY"))


def judged(*top: tuple[str, float], text: str = "Yes", first: str = "Yes", cut: bool = False) -> float | str:
    """P(yes) of a reply whose first word has these candidates, behind a token of white space; or its fault."""
    content = [{"token": " ", "logprob": 0.0, "bytes": None, "top_logprobs": []}] * bool(top)
    candidates = [{"token": token, "logprob": math.log(p), "bytes": None} for token, p in top]
    content += [{"token": first, "logprob": 0.0, "bytes": None, "top_logprobs": candidates}] * bool(top)
    choice = {"message": {"content": text}, "finish_reason": "length" if cut else "stop"} | (
        {"logprobs": {"content": content}} if top else {}
    )
    server = RecordingServer(JSONResponse({"choices": [choice]}))

    async def ask(chat: ChatServer) -> float | str:
        return (await chat.choose([{"role": "user", "content": "Is it a bus?"}], time.monotonic() + 60))[0]

    probability: float | str = run_against(server, ask)
    assert server.bodies[0]["logprobs"] is True
    return probability


def test_yes_is_weighed_against_no_by_their_probabilities() -> None:
    assert judged(("Yes", 0.5), (" yes", 0.1), ("No", 0.2), ("Nothing", 0.1)) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("text", "probability"),
    [("Yes.", 1.0), ("no", 0.0), ("**No**", 0.0), ("Answer: yes", 1.0), ("<think>\nno bus?\n</think>\n\nYes", 1.0)],
)
def test_without_probabilities_the_word_counts(text: str, probability: float) -> None:
    assert judged(text=text) == probability


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("It is a bus", "unclear"),
        ("Nobody", "unclear"),
        ("", "refused"),
        ("I'm sorry, I can't help with that.", "refused"),
    ],
)
def test_an_answer_that_is_neither_is_named_for_its_fault(text: str, fault: str) -> None:
    assert judged(text=text) == fault
    assert judged(("A", 0.9), ("The", 0.1), text=text, first="A") == fault
    assert judged(text=f"{text} <think>\nOkay, yes", cut=True) == "cut off"


def test_the_answer_is_weighed_after_the_reasoning() -> None:
    def token(text: str, **candidates: float) -> dict[str, Any]:
        top = [{"token": word, "logprob": math.log(p), "bytes": None} for word, p in candidates.items()]
        return {"token": text, "logprob": 0.0, "bytes": None, "top_logprobs": top}

    content = [token("<think>", no=0.9), token("no?", no=0.9), token("</think>\n"), token("Yes", yes=0.6, no=0.2)]
    message = {"content": "<think>no?</think>\nYes"}
    choice = {"message": message, "finish_reason": "stop", "logprobs": {"content": content}}
    ask = [{"role": "user", "content": "Is it a bus?"}]
    server = RecordingServer(JSONResponse({"choices": [choice]}))
    answer, _ = run_against(server, lambda chat: chat.choose(ask, time.monotonic() + 60))
    assert answer == pytest.approx(0.75)


def test_a_pair_is_answered_by_first_or_second() -> None:
    reply = {"choices": [{"message": {"content": "The second one."}, "finish_reason": "stop"}]}
    ask = [{"role": "user", "content": "Which?"}]
    words = ("first", "second")
    answer, _ = run_against(
        RecordingServer(JSONResponse(reply)), lambda chat: chat.choose(ask, time.monotonic() + 60, words)
    )
    assert answer == 0.0
