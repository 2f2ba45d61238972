"""Hostile models under test: archives, names, pickles, configurations that point elsewhere."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import httpx
import pytest

from tests.support.gateway_under_test import Gateway, picture
from tests.support.hostile.names import form
from tests.support.hostile.packs import TARS, ZIPS, Pack, tarred, zipped
from tests.support.hostile.refusals import assert_refused
from tests.support.model_packages import HUB, safetensors

pytestmark = [pytest.mark.usefixtures("watch"), pytest.mark.parametrize("gateway", ["sqlite"], indirect=True)]


WRITTEN = Path("contrafact-was-here")  # where a loaded pickle would show


class Evil:
    """A pickle that would make a file."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(WRITTEN), "w")


def post(gateway: Gateway, *files: tuple[str, bytes], name: str = "m") -> httpx.Response:
    return gateway.client.post("/models", files=[("model", file) for file in files], data={"name": name})


def package_with(**files: bytes) -> list[tuple[str, bytes]]:
    return list({**HUB, **{name.replace("__", "."): data for name, data in files.items()}}.items())


@pytest.mark.parametrize("case", [*ZIPS, *TARS], ids=lambda case: case.name)
def test_no_archive_becomes_a_model_or_breaks_the_gateway(gateway: Gateway, case: Pack) -> None:
    reply = post(gateway, ("model.zip", case.build()))
    assert 400 <= reply.status_code < 500, reply.text
    assert_refused(reply, reply.status_code, "")


def header(content: bytes) -> bytes:
    """A safetensors file without tensors."""
    return struct.pack("<Q", len(content)) + content


LONG_HEADER = header(b'{"a":[' + b"[]," * (30 * 1024**2) + b"[]]}")
PICKLE = pickle.dumps(Evil())
CASES: list[tuple[str, list[tuple[str, bytes]], int, str]] = [
    ("a pickle by name", package_with(pytorch_model__bin=PICKLE), 422, "may hold a pickle"),
    ("a pickle as safetensors", package_with(model__safetensors=PICKLE), 400, "not a safetensors file"),
    ("a pickle as configuration", package_with(config__json=PICKLE), 400, "JSON"),
    ("a pickle alone", [("model", PICKLE)], 422, "there are no weights"),
    ("a picture", [("model.png", picture())], 422, "there are no weights"),
    ("a path", [("../../config.json", b"{}")], 422, "there are no weights"),
    ("a header of exabytes", package_with(model__safetensors=struct.pack("<Q", 2**62)), 400, "not a safetensors file"),
    ("a header of 90 MB", package_with(model__safetensors=LONG_HEADER), 413, "more than 4,194,304 bytes"),
    (
        "an infinite offset",
        package_with(model__safetensors=header(b'{"a":{"data_offsets":[0,Infinity]}}')),
        400,
        "not a",
    ),
    ("a class with U+0000", package_with(config__json=b'{"id2label": {"0": "a\\u0000"}}'), 400, "cannot be stored"),
    ("a class with half a character", package_with(config__json=b'{"id2label": {"0": "\\ud800"}}'), 400, "stored"),
    ("offsets beyond the file", package_with(model__safetensors=safetensors(9)[:-1]), 400, "not as long as"),
    ("code", package_with(modeling_evil__py=b"import os"), 422, "is code"),
    ("remote code", package_with(config__json=b'{"auto_map": {"AutoModel": "evil--x.Y"}}'), 422, "`auto_map`"),
    ("deep remote code", package_with(config__json=b'{"a": [[{"auto_map": {"b": "c"}}]]}'), 422, "`auto_map`"),
    ("nesting", package_with(config__json=b'{"a":' * 50_000), 400, "JSON"),
    ("a huge number", package_with(config__json=b'{"a": ' + b"9" * 5_000 + b"}"), 400, "JSON"),
    (
        "shards elsewhere",
        package_with(model__safetensors__index__json=b'{"weight_map": {"a": "/etc/passwd"}}'),
        422,
        "not sent",
    ),
    ("an address", package_with(contrafact__json=b'{"url": "http://169.254.169.254/"}'), 422, "unknown field url"),
    ("a zip in a zip", [("m.zip", zipped(("inner.zip", zipped(*HUB.items()))))], 400, "another archive"),
    ("a pickle in a tar", [("m.tar", tarred(*HUB.items(), ("x.pkl", PICKLE)))], 422, "may hold a pickle"),
    ("a bomb of weights", [("m.zip", zipped(("model.safetensors", bytes(300_000_000))))], 413, "unpacks to more"),
]


@pytest.mark.parametrize(("name", "files", "status", "words"), CASES, ids=[case[0] for case in CASES])
def test_a_hostile_model_is_refused_with_a_reason(
    gateway: Gateway, name: str, files: list[tuple[str, bytes]], status: int, words: str
) -> None:
    assert_refused(post(gateway, *files), status, words)
    assert not WRITTEN.exists(), "a pickle was loaded"


@pytest.mark.parametrize(
    "name", ["../x", "file:///etc/passwd", "http://10.0.0.1/m.pkl", "a\nb", "", "x" * 5_000, "\u202em"]
)
def test_only_plain_names_are_accepted(gateway: Gateway, name: str) -> None:
    reply = post(gateway, *HUB.items(), name=name)
    assert_refused(reply, reply.status_code, "")
    assert reply.status_code in (400, 422)
    added = gateway.client.post("/jobs/none/models", json={"models": [name]})
    assert added.status_code in (404, 422), added.text


def test_invalid_specs_and_wrong_forms_are_refused(gateway: Gateway) -> None:
    def post_spec(spec: bytes) -> httpx.Response:
        return gateway.client.post("/models", files=[*(("model", file) for file in HUB.items()), ("spec", ("s", spec))])

    assert_refused(post_spec(b"{"), 400, "spec")
    assert_refused(post_spec(b"[]"), 422, "spec")
    assert_refused(post_spec(b'{"name": "m", "hub": "evil/model"}'), 422, "unknown field hub")
    assert_refused(post_spec(b'{"name": "m", "classes": {"a": 1e400}}'), 422, "spec")
    assert_refused(post_spec(json.dumps({"name": "m", "classes": ["a"] * 20_000}).encode()), 422, "classes")
    assert_refused(post_spec(b'{"name": "m\\u0000"}'), 422, "U+0000")
    assert_refused(post_spec(b"{" + b'"a":{' * 100_000), 400, "spec")
    body = form((b'name="model"; filename="../../../../etc/cron.d/x"', b"x"), (b'name="name"', b"m"))
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    assert_refused(gateway.client.post("/models", content=body, headers=kind), 422, "there are no weights")
    assert_refused(gateway.client.post("/models", content=body[:-30], headers=kind), 422, "")
