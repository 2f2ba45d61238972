"""`GET /jobs/{job}/export` as an archive: filters, refusals, memory, deletion while it is sent, names, S3."""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from typer.testing import CliRunner, Result

from contrafact.cli import app
from gateway.database.tables import LOCAL_OWNER, Job, Prediction, SourceImage
from gateway.export import selection
from gateway.export.job import open_export
from gateway.export.selection import Selection, exported_images
from shared.media.s3_store import S3Store
from shared.media.storage import ObjectStore, image_key
from shared.problems import NotFound
from tests.support.drawn_job import add_drawn_job
from tests.support.exports import FILES, export, provenance, rows_of, unpacked
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.s3_server import S3Server


def test_filters_choose_counterfactuals_and_their_null_arms(gateway: Gateway, tmp_path: Path) -> None:
    query = {"class": "bus", "value": "night", "flipped": "true", "model": "night-bus"}
    page = gateway.client.get("/jobs/drawn/results", params={**query, "verdict": "accepted", "limit": 200}).json()
    expected = {view["id"] for view in page["counterfactuals"]}
    records = provenance(unpacked(gateway, tmp_path / "all", **query))
    assert {r["id"] for r in records if r["arm"] == "counterfactual"} == expected != set()
    assert {r["label"] for r in records} == {"bus"}
    assert Counter(r["arm"] for r in records) == {
        "original": 4,
        "null_arm": len(expected),
        "counterfactual": len(expected),
    }
    only = provenance(unpacked(gateway, tmp_path / "some", **query, arm=["counterfactual", "null_arm"]))
    assert {r["arm"] for r in only} == {"null_arm", "counterfactual"}
    rejected = provenance(unpacked(gateway, tmp_path / "rejected", verdict="rejected", arm="counterfactual"))
    assert {r["verdict"] for r in rejected} == {"rejected"}
    assert {r["check"] for r in rejected} == {"structure", "label"}


def test_it_is_not_sent_twice(gateway: Gateway) -> None:
    first = export(gateway)
    assert first.headers["content-disposition"] == 'attachment; filename="contrafact-drawn-folders.tar"'
    assert first.headers["content-type"] == "application/x-tar"
    assert export(gateway).content == first.content
    tag = first.headers["etag"]
    assert export(gateway, verdict="any").headers["etag"] != tag
    again = gateway.client.get("/jobs/drawn/export", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_refusals(gateway: Gateway) -> None:
    assert gateway.client.get("/jobs/nobodys/export").status_code == 404
    for query in ({"format": "zip"}, {"verdict": "perhaps"}, {"colour": "red"}, {"arm": "left"}):
        assert gateway.client.get("/jobs/drawn/export", params=query).status_code == 422, query
    with gateway.context.sessions.begin() as session:
        session.execute(update(Job).where(Job.id == "drawn").values(state="running"))
    reply = gateway.client.get("/jobs/drawn/export")
    with gateway.context.sessions.begin() as session:
        session.execute(update(Job).where(Job.id == "drawn").values(state="done"))
    assert reply.status_code == 409


class Counting:
    """A store that counts what is read of another."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.read = 0

    def get(self, key: str) -> bytes:
        self.read += 1
        return self._store.get(key)


@pytest.mark.parametrize("format_name", FILES)
def test_one_image_at_a_time_is_in_memory(gateway: Gateway, format_name: Any) -> None:
    store = Counting(gateway.context.store)
    export = open_export(gateway.context.sessions, LOCAL_OWNER, "drawn", format_name, Selection())
    pieces = export.chunks(gateway.context.sessions, store)  # type: ignore[arg-type]
    for number in range(40):
        next(pieces)
        assert store.read <= number, "an image is read when its piece is asked for"


def test_deleting_the_job_breaks_the_archive_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "SOURCES_PER_PAGE", 2)
    with serve_gateway(tmp_path) as served:
        sessions, store = served.context.sessions, served.context.store
        add_drawn_job(sessions, store, per_class=1)  # two pages
        pieces = open_export(sessions, LOCAL_OWNER, "drawn", "folders", Selection()).chunks(sessions, store)
        next(pieces)
        next(pieces)
        assert served.client.delete("/jobs/drawn").status_code == 204
        with pytest.raises(NotFound, match="deleted"):
            for _ in pieces:
                pass


def test_names_that_users_choose_stay_data(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as served:
        sessions = served.context.sessions
        add_drawn_job(sessions, served.context.store, per_class=1)
        with sessions.begin() as session:
            source = session.scalars(select(SourceImage).where(SourceImage.position == 0)).one()
            source.file_name, source.ground_truth = "..\\..\\=cmd|' /C calc'!A0.png", "=HYPERLINK(../x)"
            session.execute(update(SourceImage).where(SourceImage.position == 1).values(ground_truth=None))
            session.execute(update(Prediction).values(predicted="@evil"))
        folder = unpacked(served, tmp_path / "export")
        table = rows_of(folder / "metadata.csv")
        cells = {value for row in table for value in row.values()}
        assert not [value for value in cells if value.startswith(("=", "@", "+", "-"))]
        assert "'=HYPERLINK(../x)" in cells
        originals = {path.relative_to(folder).as_posix() for path in folder.glob("original/*/*")}
        assert any(re.fullmatch(r"original/_HYPERLINK\(|original/_HYPERLINK.*/000000-.*\.png", n) for n in originals)
        assert any(name.startswith("original/unlabelled/000001-") for name in originals)
        labels = [json.loads(line)["label"] for line in (folder / "manifest.jsonl").read_text().splitlines()]
        assert labels[:2] == ["=HYPERLINK(../x)", None]


def test_an_export_streams_from_s3(gateway: Gateway, s3_server: S3Server) -> None:
    store = S3Store(s3_server.endpoint, "export", s3_server.access_key, s3_server.secret_key, secure=False)
    store.create_bucket()
    sessions, few = gateway.context.sessions, Selection(arm=["original"])
    for image in exported_images(sessions, "drawn", few):
        store.put(image_key(image.image), gateway.context.store.get(image_key(image.image)))
    streamed = b"".join(open_export(sessions, LOCAL_OWNER, "drawn", "folders", few).chunks(sessions, store))
    assert streamed == export(gateway, arm="original").content


def test_the_command_saves_an_export(gateway: Gateway, tmp_path: Path) -> None:
    def contrafact(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["export", *arguments, "--url", str(gateway.client.base_url)])

    out = tmp_path / "set.tar"
    result = contrafact("drawn", "--format", "coco", "--where", "arm=original", "--where", "class=bus", "-o", str(out))
    assert (result.exit_code, result.stdout) == (0, f"{out}\n"), result.output
    with tarfile.open(out) as archive:
        assert sum(name.startswith("original/bus/") for name in archive.getnames()) == 4
    refusal = contrafact("nobodys", "-o", str(tmp_path / "none.tar"))
    assert (refusal.exit_code, refusal.stdout) == (3, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set.tar"], "nothing half is left"
