"""Problem documents: every error of an app is one, and clients raise the same class."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from shared import problems
from shared.problems import DependencyFailed, GenerationFailed, NotFound, Overloaded, Problem, Unauthorized
from shared.service import problem_replies
from shared.service.problem_replies import problem_reply


class Body(BaseModel):
    number: int


def build_app() -> FastAPI:
    app = FastAPI()
    problem_replies.install(app)

    @app.get("/busy")
    async def busy() -> None:
        raise Overloaded("come back later", members={"waiting": 7}, retry_after=12.4)

    @app.get("/broken")
    async def broken() -> None:
        raise ZeroDivisionError("secret path /etc")

    @app.post("/body")
    async def body(body: Body) -> None:
        return None

    return app


def ask(method: str, path: str, content: bytes | None = None) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(build_app(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, content=content, headers={"content-type": "application/json"})

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "message"),
    [
        ("GET", "/busy", None, 429, "come back later"),
        ("GET", "/broken", None, 500, "an unexpected ZeroDivisionError"),
        ("GET", "/nowhere", None, 404, "GET /nowhere: Not Found"),
        ("POST", "/busy", None, 405, "Method Not Allowed"),
        ("POST", "/body", b"{", 400, "JSON"),
        ("POST", "/body", b'{"number": "many"}', 422, "body.number: Input should be a valid integer"),
    ],
)
def test_every_error_is_a_problem_document(
    method: str, path: str, content: bytes | None, status: int, message: str
) -> None:
    reply = ask(method, path, content)
    document = reply.json()
    assert reply.headers["content-type"] == problems.MEDIA_TYPE
    assert reply.status_code == document["status"] == status
    assert message in document["detail"]
    assert {"type", "title", "instance"} <= set(document)
    assert "secret" not in reply.text


def test_headers_and_members_travel() -> None:
    reply = ask("GET", "/busy")
    assert reply.headers["retry-after"] == "12"
    assert reply.json()["waiting"] == 7
    assert problem_reply(Unauthorized("give a key")).headers["www-authenticate"] == "Bearer"


@given(
    st.sampled_from(list(problems.problem_types())),
    st.text(min_size=1),
    st.dictionaries(st.just("extra"), st.integers()),
)
def test_a_reply_becomes_the_same_problem_again(cls: type[Problem], detail: str, members: dict[str, int]) -> None:
    sent = cls(detail, members=dict(members), retry_after=3)
    received = problems.from_reply(sent.status, bytes(problem_reply(sent, "/x").body), "3")
    assert (type(received), received.detail, received.members, received.retry_after) == (cls, detail, members, 3)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"type": 3}', b"\xff", json.dumps({"detail": "x"}).encode()])
def test_nonsense_from_a_service_is_a_failed_dependency(body: bytes) -> None:
    assert type(problems.from_reply(500, body)) is DependencyFailed


def test_names_are_unique_and_documented() -> None:
    names = [cls.name for cls in problems.problem_types()]
    assert len(set(names)) == len(names)
    assert all(f"{cls.status}  {cls.name}" in (problems.__doc__ or "") for cls in problems.problem_types())
    assert issubclass(GenerationFailed, DependencyFailed)
    assert NotFound.status == 404
