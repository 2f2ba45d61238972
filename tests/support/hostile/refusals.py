"""How the gateway must refuse hostile input."""

from __future__ import annotations

import httpx


def assert_refused(reply: httpx.Response, status: int, words: str) -> None:
    """The reply is a problem document of this status whose sentence has these words, and no secret or traceback."""
    assert reply.status_code == status, reply.text[:2_000]
    assert reply.headers["Content-Type"] == "application/problem+json"
    detail = reply.json()["detail"]
    assert words in detail, detail[:2_000]
    assert len(reply.content) < 20_000
    assert "Traceback" not in reply.text
