"""A gateway limits the bytes of all uploads in progress: the next upload gets 503 and may be sent again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

import gateway.auth.middleware as gateway_access
from tests.support.gateway_under_test import Gateway, picture, serve_gateway
from tests.support.work_site import wait_for

HEAD = b"--x\r\nContent-Disposition: form-data; name=images; filename=a.png\r\n\r\n"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with serve_gateway(tmp_path, max_spooled_bytes=400_000) as served:
        yield served


def post(gateway: Gateway, padding: int) -> httpx.Response:
    files = [("images", ("a.png", picture())), ("manifest", ("m.csv", b"file,label\na.png,car\n" + b"\n" * padding))]
    return gateway.client.post("/jobs", files=files, data={"task": "classify the vehicle"})


def streamed(gateway: Gateway, size: int) -> httpx.Response:
    def body() -> Iterator[bytes]:
        yield HEAD
        for _ in range(size // 10_000):
            yield bytes(10_000)

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    return gateway.client.post("/jobs", content=body(), headers=headers)


FORM = b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
IMAGE = b"PUT /images/%s HTTP/1.1\r\nHost: localhost\r\n" % (b"0" * 64)
MANIFEST = b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def begun(gateway: Gateway, declared: int, sent: bytes, head: bytes = FORM) -> socket.socket:
    """A connection over which an upload has begun."""
    address = urlsplit(str(gateway.client.base_url))
    connection = socket.create_connection((address.hostname, address.port), timeout=60)
    connection.sendall(head + b"Content-Length: %d\r\n\r\n" % declared + sent)
    return connection


def has_room(gateway: Gateway, declared: int, head: bytes = FORM) -> bool:
    """Whether an upload of this size may begin; it sends nothing."""
    with begun(gateway, declared, b"", head) as connection:
        connection.settimeout(0.5)
        try:
            return not connection.recv(100).startswith(b"HTTP/1.1 503")
        except TimeoutError:
            return True


def test_uploads_in_progress_leave_no_room_for_others_until_they_end(gateway: Gateway) -> None:
    assert post(gateway, 200_000).status_code == 202
    with begun(gateway, 390_000, HEAD + bytes(300_000)):
        wait_for(lambda: not has_room(gateway, 110_000))
        declared, counted = post(gateway, 200_000), streamed(gateway, 200_000)
        for refusal in (declared, counted):
            assert refusal.status_code == 503
            assert refusal.headers["Content-Type"] == "application/problem+json"
            assert int(refusal.headers["Retry-After"]) > 0
        assert post(gateway, 10).status_code == 202, "there is room for a small one"
    wait_for(lambda: has_room(gateway, 400_000))
    assert post(gateway, 200_000).status_code == 202


@pytest.mark.slow
def test_bodies_in_memory_have_a_smaller_limit_than_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_access, "MAX_BYTES_IN_MEMORY", 200_000, raising=False)
    with serve_gateway(tmp_path) as served, begun(served, 150_000, bytes(140_000), IMAGE):
        for head in (IMAGE, MANIFEST):
            wait_for(lambda head=head: not has_room(served, 100_000, head), 60)  # type: ignore[misc]
        assert has_room(served, 100_000, FORM)
        assert has_room(served, 10_000, IMAGE)
