"""Keys, byte limits and foreign origins are checked before the body is read."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from contrafact.client import Client
from gateway.auth.keys import SCOPES, Limits, Scope, create_key, revoke_key
from gateway.database.tables import ApiKey
from tests.support.gateway_under_test import Gateway, picture, serve_gateway


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Gateway]:
    with serve_gateway(tmp_path, authentication=True, max_request_bytes=200_000, max_image_bytes=50_000) as gateway:
        yield gateway


def detail(reply: httpx.Response, status: int) -> str:
    assert reply.status_code == status, reply.text
    assert reply.headers["Content-Type"] == "application/problem+json"
    return str(reply.json()["detail"])


@pytest.mark.slow
def test_only_keys_open_and_only_their_hash_is_kept(locked: Gateway, key: str) -> None:
    client = locked.client
    assert "API key" in detail(client.get("/jobs"), 401)
    assert "API key" in detail(client.get("/jobs", headers={"Authorization": "Bearer cf_wrong"}), 401)
    assert client.get("/jobs", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    basic = base64.b64encode(f"anybody:{key}".encode()).decode()
    detail(client.get("/jobs", headers={"Authorization": f"Basic {basic}"}), 401)
    assert client.get("/healthz").status_code == 200
    assert client.get("/openapi.json").status_code == 200
    with locked.context.sessions.begin() as session:
        assert all(key not in row.hash for row in session.query(ApiKey))
        assert revoke_key(session, key)
    assert "API key" in detail(client.get("/jobs", headers={"Authorization": f"Bearer {key}"}), 401)


def test_a_browser_is_refused_by_a_page(locked: Gateway, key: str) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Authorization": f"Bearer {key}"}
    foreign = {**browser, "Origin": "https://other.example"}
    for verb, path, headers, status, words in (
        ("POST", "/", foreign, 403, "pages of other sites are refused"),
        ("GET", "/", {**browser, "Authorization": "Bearer cf_wrong"}, 401, "unknown or revoked"),
        ("GET", "/jobs/%00/view", browser, 400, "%00"),
    ):
        reply = locked.client.request(verb, path, headers=headers)
        assert (reply.status_code, reply.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
        assert words in reply.text
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
    document = locked.client.post("/", headers={**foreign, "Accept": "*/*"})
    assert "pages of other sites" in detail(document, 403)


def test_a_stranger_is_refused_before_sending_a_byte(locked: Gateway) -> None:
    address = urlsplit(str(locked.client.base_url))
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(
            b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
            b"Content-Length: 150000\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 401")


def test_declared_and_streamed_bytes_are_limited(locked: Gateway, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    large = [("images", ("a.png", picture() + bytes(210_000)))]
    assert "larger than 200,000" in detail(locked.client.post("/jobs", files=large, headers=headers), 413)

    def chunks() -> Iterator[bytes]:
        yield b"--x\r\nContent-Disposition: form-data; name=images; filename=a.png\r\n\r\n"
        for _ in range(30):
            yield bytes(10_000)

    streamed = {**headers, "Content-Type": "multipart/form-data; boundary=x"}
    assert "larger than 200,000" in detail(locked.client.post("/jobs", content=chunks(), headers=streamed), 413)
    assert "larger than 50,000" in detail(
        locked.client.put(f"/images/{'a' * 64}", content=bytes(50_001), headers=headers), 413
    )
    assert "larger than 65,536" in detail(
        locked.client.request("DELETE", "/jobs/x", content=bytes(70_000), headers=headers), 413
    )


def test_each_scope_opens_its_own_doors(locked: Gateway) -> None:
    def status(scopes: list[Scope], verb: str, path: str) -> int:
        with locked.context.sessions.begin() as session:
            key = create_key(session, "bob", scopes)
        return locked.client.request(verb, path, headers={"Authorization": f"Bearer {key}"}).status_code

    assert [status([], verb, path) for verb, path in (("GET", "/jobs"), ("POST", "/jobs"))] == [200, 403]
    assert [status(["review"], verb, path) for verb, path in (("GET", "/jobs"), ("POST", "/jobs"))] == [200, 403]
    assert [status(["submit"], "POST", path) for path in ("/jobs", "/jobs/x/report")] == [415, 403]
    assert [status(["review"], "POST", path) for path in ("/jobs", "/jobs/x/report")] == [403, 404]
    assert [status(["admin"], "POST", path) for path in ("/jobs", "/jobs/x/report")] == [415, 404]
    for verb, path in (("DELETE", "/suites/reviewed"), ("POST", "/suites/review-night/runs")):
        assert [status([scope], verb, path) == 403 for scope in ("submit", "review")] == [False, True]
    assert [status([scope], "GET", "/metrics") for scope in SCOPES] == [403, 403, 200]
    assert "needs submit" in locked.client.post("/jobs", headers=bearer(locked, ["review"])).json()["detail"]


def bearer(gateway: Gateway, scopes: list[Scope] | None = None, **limits: int) -> dict[str, str]:
    with gateway.context.sessions.begin() as session:
        return {"Authorization": f"Bearer {create_key(session, 'bob', scopes or ['submit'], limits=Limits(**limits))}"}


def test_requests_beyond_a_keys_own_limit_are_429_and_say_when_to_come_back(locked: Gateway, key: str) -> None:
    mine = bearer(locked, requests_per_minute=2)
    replies = [locked.client.get("/jobs", headers=mine) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert "2 requests a minute" in detail(replies[-1], 429)
    assert 1 <= int(replies[-1].headers["Retry-After"]) <= 31
    assert locked.client.get("/jobs", headers={"Authorization": f"Bearer {key}"}).status_code == 200


@pytest.mark.slow
def test_our_own_client_waits_for_its_limit(locked: Gateway) -> None:
    key = bearer(locked, requests_per_minute=120)["Authorization"].removeprefix("Bearer ")
    client = Client(str(locked.client.base_url), key)
    for _ in range(122):  # a place comes free twice a second
        client.jobs()
    client.close()


def test_bytes_are_booked_before_and_while_they_come(locked: Gateway) -> None:
    mine = bearer(locked, bytes_per_hour=150_000) | {"Content-Type": "multipart/form-data; boundary=x"}

    def chunks() -> Iterator[bytes]:
        for _ in range(5):
            yield bytes(10_000)

    assert locked.client.post("/jobs", content=bytes(100_000), headers=mine).status_code == 400  # no form
    reply = locked.client.post("/jobs", content=bytes(100_000), headers=mine)
    assert "150,000 bytes an hour" in detail(reply, 429)
    assert 600 < int(reply.headers["Retry-After"]) < 1900
    assert "150,000 bytes an hour" in detail(locked.client.post("/jobs", content=chunks(), headers=mine), 429)
    assert locked.client.get("/jobs", headers=mine).status_code == 200
    small = bearer(locked, max_request_bytes=20_000)
    assert "larger than 20,000" in detail(locked.client.post("/jobs", content=bytes(30_000), headers=small), 413)
    never = bearer(locked, bytes_per_hour=1_000)
    assert "larger than 1,000" in detail(locked.client.post("/jobs", content=bytes(2_000), headers=never), 413)


def test_without_keys_only_this_machine_and_this_site_are_served(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as gateway:
        client = gateway.client
        assert client.get("/jobs").status_code == 200
        assert "localhost" in detail(client.get("/jobs", headers={"Host": "evil.example"}), 403)
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert "other sites" in detail(client.post("/jobs", data={"task": "abc"}, headers=headers), 403)
        assert client.post("/jobs", data={"task": "abc"}, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 415


@pytest.mark.parametrize("name", ["Host", "Origin"])
@pytest.mark.parametrize("authentication", [False, True])
def test_a_malformed_address_is_refused(tmp_path: Path, name: str, authentication: bool) -> None:
    address = {"Host": "[", "Origin": "http://["}[name]
    with serve_gateway(tmp_path, authentication=authentication) as gateway:
        reply = gateway.client.post("/jobs", headers={name: address})
        detail(reply, 401 if authentication and name == "Host" else 403)


@pytest.mark.slow
def test_no_answer_is_taken_for_what_it_is_not(locked: Gateway, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    for path in ("/", "/jobs", "/login", "/openapi.json", "/static/job.js", "/nowhere"):
        for reply in (locked.client.get(path), locked.client.get(path, headers=headers)):
            assert reply.headers["X-Content-Type-Options"] == "nosniff", path
