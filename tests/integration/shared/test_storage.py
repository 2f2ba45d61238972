"""The object store: the same behaviour from a directory and from a real S3 server."""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
import time
import uuid
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from shared.media.s3_store import S3Store
from shared.media.storage import DirectoryStore, ObjectMissing, ObjectStore, image_key, model_key
from shared.problems import DependencyFailed
from tests.support.s3_server import S3Server
from tests.support.threads import run_together
from tests.support.work_site import wait_for


def s3_store(server: S3Server, secret_key: str) -> S3Store:
    return S3Store(server.endpoint, f"test-{uuid.uuid4().hex[:12]}", server.access_key, secret_key, secure=False)


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        return DirectoryStore(tmp_path)
    server: S3Server = request.getfixturevalue("s3_server")
    store = s3_store(server, server.secret_key)
    store.create_bucket()
    store.create_bucket()
    return store


def test_put_get_exists_delete(store: ObjectStore) -> None:
    key = image_key("ab" * 32)
    assert not store.exists(key)
    with pytest.raises(ObjectMissing):
        store.get(key)
    for data in (b"first", b"first", b"second", b""):
        store.put(key, data)
        assert store.get(key) == data
    assert store.exists(key)
    store.delete(key)
    store.delete(key)
    assert not store.exists(key)


def test_a_link_opens_one_object_for_a_while(request: pytest.FixtureRequest) -> None:
    server: S3Server = request.getfixturevalue("s3_server")
    store = s3_store(server, server.secret_key)
    store.create_bucket()
    key = model_key("ab" * 32, "1")
    store.put_file(key, io.BytesIO(b"a model"))
    link = store.link(key, 60)
    assert httpx.get(link, trust_env=False, timeout=60).content == b"a model"
    assert httpx.get(link.replace("ab", "ac", 1), trust_env=False, timeout=60).status_code in (403, 404)
    assert httpx.get(link[:-1] + ("0" if link[-1] != "0" else "1"), trust_env=False, timeout=60).status_code == 403


def test_a_file_is_stored_from_its_beginning(store: ObjectStore) -> None:
    file = io.BytesIO(bytes(3 * 1024**2) + b"end")
    file.seek(5)
    store.put_file("models/a.tar", file)
    assert store.get("models/a.tar") == file.getvalue()


def test_an_object_is_read_in_pieces(store: ObjectStore) -> None:
    data = np.random.default_rng(0).bytes(3 * 1024**2 + 5)
    store.put("models/a.tar", data)
    pieces = list(store.pieces("models/a.tar"))
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= 1024**2
    with pytest.raises(ObjectMissing):
        store.pieces("models/b.tar")


def test_iterate_lists_by_prefix_in_key_order(store: ObjectStore) -> None:
    keys = ["images/ab/1.png", "images/ab/2.png", "images/b0/3.png", "reports-old", "reports/1.html", "reports0"]
    before = time.time()
    for key in reversed(keys):
        store.put(key, key.encode())
    assert [item.key for item in store.iterate()] == keys
    listed = list(store.iterate("images/ab"))
    assert [item.key for item in listed] == keys[:2]
    assert listed[0].size == len(keys[0])
    assert before - 2 <= listed[0].modified.timestamp() <= time.time() + 2  # stores round to seconds


def test_iterate_reads_a_folder_when_it_comes_to_it(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for key in ("images/ab/1.png", "images/b0/2.png", "reports/1.html"):
        store.put(key, b"object")
    objects = store.iterate()
    assert next(objects).key == "images/ab/1.png"
    store.put("reports/2.html", b"later")
    shutil.rmtree(tmp_path / "images" / "b0")
    assert [item.key for item in objects] == ["reports/1.html", "reports/2.html"]


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "a/../b", "..", "a//b", ".hidden", "a/.b", "a\\b", "a b", "x" * 600]
)
def test_keys_cannot_leave_the_store(store: ObjectStore, key: str) -> None:
    for use in (store.get, store.exists, store.delete):
        with pytest.raises(ValueError, match="not an object key"):
            use(key)
    with pytest.raises(ValueError, match="not an object key"):
        store.put(key, b"")


def test_racing_writers_leave_one_whole_object(store: ObjectStore) -> None:
    bodies = [bytes([letter]) * 200_000 for letter in range(6)]
    run_together(*(partial(store.put, "race", body) for body in bodies))
    assert store.get("race") in bodies


def test_a_replaced_object_stays_whole_for_who_reads_it(tmp_path: Path) -> None:
    """It is renamed into place: a writer that is killed in the middle leaves the old object."""
    store = DirectoryStore(tmp_path)
    store.put("object", b"old")
    with (tmp_path / "object").open("rb") as file:
        store.put("object", b"newer")
        assert file.read() == b"old"
    assert store.get("object") == b"newer"
    assert not list((tmp_path / ".incoming").iterdir())


def _write_for_ever(root: Path) -> None:
    store = DirectoryStore(root)
    number = 0
    while True:
        store.put("victim", bytes([number % 256]) * 3_000_000)
        number += 1


@pytest.mark.slow
def test_a_killed_writer_leaves_a_whole_object(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for milliseconds in (1, 4, 9):
        store.delete("victim")
        writer = multiprocessing.get_context("spawn").Process(target=_write_for_ever, args=(tmp_path,))
        writer.start()
        try:
            wait_for(lambda: store.exists("victim"))
            time.sleep(milliseconds / 1000)
        finally:
            writer.kill()
            writer.join()
        data = store.get("victim")
        assert len(data) == 3_000_000
        assert len(set(data)) == 1
        assert [item.key for item in store.iterate()] == ["victim"]


def test_abandoned_temporary_files_go_after_a_day(tmp_path: Path) -> None:
    DirectoryStore(tmp_path)
    old, new = tmp_path / ".incoming" / "old", tmp_path / ".incoming" / "new"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (time.time() - 90_000,) * 2)
    DirectoryStore(tmp_path)
    assert not old.exists()
    assert new.exists()


def test_an_unreachable_server_is_a_failed_dependency() -> None:
    store = S3Store("127.0.0.1:9", "bucket", "a:b", "secret", secure=False)
    with pytest.raises(DependencyFailed, match="the object store failed"):
        store.exists("key")


def test_a_wrong_secret_is_a_failed_dependency(s3_server: S3Server) -> None:
    with pytest.raises(DependencyFailed, match="SignatureDoesNotMatch"):
        s3_store(s3_server, "wrong").create_bucket()


def test_a_missing_bucket_is_a_failed_dependency(s3_server: S3Server) -> None:
    store = s3_store(s3_server, s3_server.secret_key)
    with pytest.raises(DependencyFailed, match="NoSuchBucket"):
        store.get("key")
