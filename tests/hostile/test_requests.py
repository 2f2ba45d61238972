"""Hostile specs, addresses, paths, headers and cursors, against a gateway on both databases."""

from __future__ import annotations

import base64
import json
import os
import resource
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.gateway_under_test import Gateway, picture, serve_gateway
from tests.support.hostile.names import form
from tests.support.hostile.refusals import assert_refused
from tests.support.hostile.specs import ADDRESSES, DEEP_AT_THE_EDGE, FIELDS, NUMBERS, SHAPES, TASK, Spec

pytestmark = pytest.mark.usefixtures("watch")
IMAGE = ("images", ("a.png", picture()))
DIGEST = "a" * 64


def exchange(gateway: Gateway, request: bytes) -> bytes:
    """What the gateway answers to these bytes, as far as it comes in one piece or until it hangs up."""
    address = urlsplit(str(gateway.client.base_url))
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(request)
        if b"Connection: close" in request:
            return b"".join(iter(lambda: connection.recv(65_536), b""))
        return connection.recv(65_536)


@pytest.mark.parametrize("case", [*SHAPES, *FIELDS, *NUMBERS], ids=lambda case: case.name)
def test_a_hostile_spec_is_refused_with_a_reason(gateway: Gateway, case: Spec) -> None:
    reply = gateway.client.post("/jobs", files=[IMAGE, ("spec", ("spec.json", case.data))])
    assert_refused(reply, case.status, case.words)
    assert gateway.wakes == []


@pytest.mark.parametrize("case", [*SHAPES, *FIELDS, *NUMBERS], ids=lambda case: case.name)
@pytest.mark.parametrize("gateway", ["sqlite"], indirect=True)
def test_invalid_specs_are_refused_as_json_and_with_a_separate_task(gateway: Gateway, case: Spec) -> None:
    beside = gateway.client.post("/jobs", files=[IMAGE, ("spec", ("s", case.data))], data={"task": TASK})
    as_json = gateway.client.post("/jobs", content=case.data, headers={"Content-Type": "application/json"})
    for reply in (beside, as_json):
        assert reply.status_code in (400, 413, 422), reply.text
        assert_refused(reply, reply.status_code, "")


@pytest.mark.parametrize("gateway", ["sqlite"], indirect=True)
def test_nesting_at_the_edge_of_what_parsers_bear_is_refused(gateway: Gateway) -> None:
    for deep in DEEP_AT_THE_EDGE:
        spec = '{"methods": [{"name": "dillema", "parameters": {"steps": ' + deep + "}}]}"
        for data in ({"task": TASK}, {}):
            reply = gateway.client.post("/jobs", files=[IMAGE, ("spec", ("s", spec.encode()))], data=data)
            assert reply.status_code in (400, 422), reply.text


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_model_is_a_name_and_never_an_address(gateway: Gateway, address: str) -> None:
    data = {"spec": json.dumps({"task": TASK, "models": [address]})}
    assert_refused(gateway.client.post("/jobs", files=[IMAGE], data=data), 422, "unknown model under test")


@pytest.mark.parametrize(
    "entry",
    [
        {"url": "http://169.254.169.254/"},
        {"digest": "http://169.254.169.254/"},
        {"digest": "../../../etc/passwd"},
        {"digest": DIGEST.upper()},
        {"digest": DIGEST + "\n"},
        {"digest": None},
        {"digest": DIGEST, "path": "/etc/passwd"},
        {"digest": DIGEST, "name": "a\nb"},
        {"digest": DIGEST, "name": "a\u202eb"},
        {"digest": DIGEST, "name": "x" * 1_001},
        {"digest": DIGEST, "label": ""},
        DIGEST,
        None,
    ],
    ids=str,
)
def test_an_image_is_a_digest_and_never_an_address(gateway: Gateway, entry: object) -> None:
    assert_refused(gateway.client.post("/jobs", json={"task": TASK, "images": [entry]}), 422, "images.0")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/images/../../etc/passwd", 404),
        ("/images/..%2f..%2fetc%2fpasswd", 404),
        ("/images/%2e%2e/%2e%2e/contrafact.db", 404),
        (f"/images/{DIGEST}%0a", 422),
        (f"/images/{DIGEST}.png", 422),
        ("/static/..%2f..%2fsettings.py", 404),
        ("/static/%2e%2e%2fsettings.py", 404),
        ("/static/....//settings.py", 404),
        ("/static/%ff", 404),
        ("/jobs/%00", 400),
        ("/jobs/..%2f..", 404),
        ("/jobs/" + "x" * 65, 422),
        ("/jobs/%ff%fe", 404),
        ("/jobs/' OR 1=1 --", 404),
        ("/jobs/x/results/" + "y" * 5_000, 404),
        ("/jobs/x/results?value=%ff&class=%ed%a0%80", 404),
        ("/jobs/x/results?limit=1e3", 422),
        ("/jobs/x/results?limit=99999999999999999999", 422),
        ("/jobs?limit=-1", 422),
        ("/jobs?limit=NaN", 422),
        ("/jobs?limit=1&limit=2", 200),
        ("/jobs?" + "&".join(f"a{i}=1" for i in range(2_000)), 422),
        ("/jobs?cursor=" + "A" * 501, 422),
    ],
)
def test_a_hostile_path_leads_nowhere(gateway: Gateway, path: str, status: int) -> None:
    target = path.replace(" ", "%20")
    answer = exchange(gateway, f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:500]
    if status != 200:
        assert b"application/problem+json" in answer


@pytest.mark.parametrize(
    "key",
    [
        ["a", "b"],
        ["2026-11-20T12:00:00", "x"],
        ["9999-12-31T23:59:59.999999-23:59", "x"],
        ["0001-01-01T00:00:00+23:59", "x"],
        ["2026-11-20T12:00:00+00:00", "\x00"],
        ["2026-11-20T12:00:00+00:00", "\ud800"],
        [2**70, "x", 1],
        [1, "x", -(2**40)],
        [1, "\ud800", 1],
        [True, "x", True],
        {},
        None,
        [[[[]]]],
    ],
    ids=repr,
)
def test_a_forged_cursor_is_refused(gateway: Gateway, key: object) -> None:
    job = gateway.client.post("/jobs", files=[IMAGE], data={"spec": json.dumps({"task": TASK, "models": []})}).json()
    cursor = base64.urlsafe_b64encode(json.dumps(key).encode()).decode()
    for path in ("/jobs", f"/jobs/{job['id']}/results", f"/jobs/{job['id']}/view", "/"):
        reply = gateway.client.get(path, params={"cursor": cursor})
        assert reply.status_code in (200, 422), (path, reply.text)
    gateway.wakes.clear()


@pytest.mark.parametrize("number", ["-1", "1.5", "x", "NaN", str(2**31), str(2**63), str(10**30), "9" * 5_000])
def test_an_event_number_that_cannot_be_is_refused(gateway: Gateway, number: str) -> None:
    assert_refused(gateway.client.get("/jobs/x/events", headers={"Last-Event-ID": number}), 422, "last-event-id")


@pytest.mark.parametrize(
    ("kind", "body", "status", "words"),
    [
        ("multipart/form-data", b"", 400, "the form cannot be read"),
        ("multipart/form-data; boundary=" + "x" * 5_000, b"--x", 400, "the form cannot be read"),
        ("multipart/form-data; boundary=x", b"", 422, "say what your model does"),
        ("multipart/form-data; boundary=x", b"no form at all", 400, "the form cannot be read"),
        ("multipart/form-data; boundary=x; charset=undefined", form((b'name="task"', b"x")), 400, "charset"),
        ("multipart/form-data; boundary=x; charset=idna", form((b'name="task"', b"x")), 400, "charset"),
        ("multipart/form-data; boundary=x; charset=utf-7", form((b'name="task"', b"+ADw-")), 400, "charset"),
        ("multipart/form-data; boundary=x", form((b'filename="a.png"', b"x")), 400, "name"),
        ("multipart/form-data; boundary=x", form((b'name="a"; x="' + b"y" * 10**6 + b'"', b"x")), 400, "cannot be"),
        ("multipart/form-data; boundary=x", form((b'name="task"', b"x" * 5 * 1024**2)), 400, "cannot be read"),
        ("multipart/form-data; boundary=x", form(*[(b'name="task"', b"abc")] * 8), 400, "cannot be read"),
        ("multipart/form-data; boundary=x", form(*[(b'name="task"', b"abc")] * 2), 422, "more than one part task"),
        ("multipart/form-data; boundary=x", form(*[(b'name="spec"; filename="s"', b"{}")] * 2), 422, "more than one"),
        (
            "multipart/form-data; boundary=x",
            form((b'name="../images"; filename="a"', b"x")),
            422,
            "part ../images",
        ),
        ("multipart/mixed; boundary=x", b"", 415, "send multipart/form-data"),
        ("application/xml", b"<a/>", 415, "application/json"),
        ("application/json; charset=utf-16", b"{}", 422, "task"),
        ("", b"{}", 415, "application/json"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_hostile_form_is_refused_with_a_reason(
    gateway: Gateway, kind: str, body: bytes, status: int, words: str
) -> None:
    assert_refused(gateway.client.post("/jobs", content=body, headers={"Content-Type": kind}), status, words)


@pytest.mark.slow
@pytest.mark.parametrize("gateway", ["sqlite"], indirect=True)
def test_more_files_than_may_be_open_are_refused_with_a_reason(gateway: Gateway) -> None:
    """Each of them is spooled to disk; many systems allow 1,024 open files by default."""
    parts = [(b'name="images"; filename="%d.png"' % number, bytes(70_000)) for number in range(999)]
    body = form(*parts, (b'name="images"; filename="a"', picture()), (b'name="task"', TASK.encode()))
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    try:
        assert_refused(gateway.client.post("/jobs", content=body, headers=headers), 429, "zip or tar")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert gateway.client.get("/jobs").status_code == 200


def test_a_body_beyond_the_limit_is_never_spooled(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    with serve_gateway(tmp_path / "gateway", max_request_bytes=8 * 1024**2) as gateway:
        most = 0

        def chunks() -> Iterator[bytes]:
            nonlocal most
            yield form((b'name="images"; filename="a.png"', b""))[: -len(b"\r\n--x--\r\n")]
            for _ in range(200):
                yield bytes(1024**2)
                most = max(most, _spooled())

        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        assert_refused(
            gateway.client.post("/jobs", content=chunks(), headers=headers), 413, "larger than 8,388,608 bytes"
        )
        assert most <= 9 * 1024**2
        claimed = f"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {3 * 1024**3}\r\n\r\n"
        assert exchange(gateway, claimed.encode()).startswith(b"HTTP/1.1 413 ")
        assert not list((tmp_path / "gateway" / "objects").rglob("*.png"))


def _spooled() -> int:
    """Bytes in temporary files that this process holds open, whether or not they still have a name."""
    sizes = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(link).startswith(tempfile.gettempdir()):
                sizes += link.stat().st_size
        except FileNotFoundError:
            continue
    return sizes
