"""Hostile names, archives and manifests, against a gateway on both databases."""

from __future__ import annotations

import json
import warnings

import httpx
import pytest

from gateway.database.tables import Job
from tests.support.gateway_under_test import Gateway, picture
from tests.support.hostile.manifests import MANIFESTS, Manifest
from tests.support.hostile.names import REFUSED_NAMES, STORED_NAMES, Name, form
from tests.support.hostile.packs import MANY_IN_TAR, TARS, ZIPS, Pack, tarred, zipped
from tests.support.hostile.refusals import assert_refused

pytestmark = pytest.mark.usefixtures("watch")
GENERATE = json.dumps({"task": "classify the vehicle", "models": []})
on_sqlite = pytest.mark.parametrize("gateway", ["sqlite"], indirect=True)


def post(gateway: Gateway, *files: tuple[str, bytes], spec: str = GENERATE) -> httpx.Response:
    return gateway.client.post("/jobs", files=[("images", file) for file in files], data={"spec": spec})


def post_raw(gateway: Gateway, body: bytes, kind: str = "multipart/form-data; boundary=x") -> httpx.Response:
    return gateway.client.post("/jobs", content=body, headers={"Content-Type": kind})


def form_with_name(file_name: bytes) -> bytes:
    """A form of a good picture and a bad one, both with this name."""
    about = b'name="images"; filename="' + file_name + b'"'
    return form((about, picture()), (about, b"\x89PNG, but no picture"), (b'name="spec"', GENERATE.encode()))


@pytest.mark.parametrize("case", STORED_NAMES, ids=lambda case: case.name)
def test_a_name_is_shown_and_never_obeyed(gateway: Gateway, case: Name) -> None:
    reply = post_raw(gateway, form_with_name(case.raw))
    assert reply.status_code == 202, reply.text
    job = reply.json()["id"]
    with gateway.context.sessions() as session:
        assert [row.file_name for row in session.get_one(Job, job).source_images] == [case.stored] * 2
    assert reply.json()["failures"][0]["name"] == case.stored
    page = gateway.client.get(f"/jobs/{job}/view")
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "onerror=alert(1)>" not in page.text.replace("&gt;", "")


@pytest.mark.parametrize(("name", "file_name", "status", "words"), REFUSED_NAMES, ids=lambda case: str(case)[:20])
def test_a_name_that_cannot_be_shown_is_refused(
    gateway: Gateway, name: str, file_name: bytes, status: int, words: str
) -> None:
    assert_refused(post_raw(gateway, form_with_name(file_name)), status, words)


def test_names_sent_twice_are_two_images_but_no_rows_of_a_manifest(gateway: Gateway) -> None:
    twice = [("a.png", picture(1)), ("a.png", picture(2))]
    assert post(gateway, *twice).json()["images"] == 2
    files = [*(("images", file) for file in twice), ("manifest", ("m.csv", b"file,label\na.png,car\n"))]
    reply = gateway.client.post("/jobs", files=files, data={"spec": GENERATE})
    assert_refused(reply, 422, "more than once: 'a.png'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        packed = zipped(*twice)
    assert post(gateway, ("set.zip", packed)).json()["images"] == 2
    assert post(gateway, ("set.tar", tarred(*twice))).json()["images"] == 2


@on_sqlite
@pytest.mark.parametrize("case", ZIPS, ids=lambda case: case.name)
def test_a_hostile_zip_is_refused_with_a_reason(gateway: Gateway, case: Pack) -> None:
    assert_refused(post(gateway, ("set.zip", case.build())), case.status, case.words)


@on_sqlite
@pytest.mark.parametrize("case", [*TARS, pytest.param(MANY_IN_TAR, marks=pytest.mark.slow)], ids=lambda case: case.name)
def test_a_hostile_tar_is_refused_with_a_reason(gateway: Gateway, case: Pack) -> None:
    assert_refused(post(gateway, ("set.tar", case.build())), case.status, case.words)


@on_sqlite
def test_archives_come_alone(gateway: Gateway) -> None:
    packed = ("set.zip", zipped(("a.png", picture())))
    assert_refused(post(gateway, packed, packed), 422, "is an archive")
    assert_refused(post(gateway, ("a.png", picture()), packed), 422, "is an archive")


@pytest.mark.slow
@on_sqlite
def test_the_number_of_labels_from_class_folders_is_limited(gateway: Gateway) -> None:
    long = zipped(("x" * 300 + "/1.png", picture(1)), ("bus/2.png", picture(2)))
    assert_refused(post(gateway, ("set.zip", long)), 422, "more than 200 characters")
    many = zipped(*((f"{i}/{i}.png", picture() if i == 0 else b"") for i in range(10_001)))
    assert_refused(post(gateway, ("set.zip", many)), 413, "10,001 different labels")


@pytest.mark.parametrize("case", MANIFESTS, ids=lambda case: case.name)
def test_a_hostile_manifest_is_refused_with_a_reason(gateway: Gateway, case: Manifest) -> None:
    files = [("images", (f"{i}.png", picture(i))) for i in (1, 2)] + [("manifest", ("labels", case.data))]
    reply = gateway.client.post("/jobs", files=files, data={"task": "classify the vehicle"})
    assert_refused(reply, case.status, case.words)


@pytest.mark.slow
@on_sqlite
def test_a_hostile_manifest_in_an_archive_is_refused_too(gateway: Gateway) -> None:
    files = [("1.png", picture(1)), ("2.png", picture(2))]
    spec = json.dumps({"task": "classify the vehicle"})
    for case in MANIFESTS:
        reply = post(gateway, ("set.zip", zipped(*files, ("manifest.csv", case.data))), spec=spec)
        assert reply.status_code in (400, 413, 422), (case.name, reply.text)
    twice = zipped(*files, ("manifest.csv", b"file,label"), ("x/manifest.jsonl", b"{}"))
    assert_refused(post(gateway, ("set.zip", twice)), 422, "more than one manifest")
