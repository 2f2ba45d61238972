"""`GET /jobs/{job}/export`: its own library reads each format, and all but parquet can be submitted as a new job."""

from __future__ import annotations

import gc
import hashlib
import io
import json
import re
import tarfile
import warnings
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sqlalchemy import select

from gateway.database.tables import Counterfactual, SourceImage
from shared.media.images import decode, digest
from shared.media.xmp import NAMESPACE
from tests.support.drawn_job import MODELS
from tests.support.exports import FILES, export, provenance, rows_of, unpacked
from tests.support.gateway_under_test import Gateway

RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
IPTC = "{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}"


@pytest.fixture
def rows(gateway: Gateway) -> dict[str, Counterfactual]:
    with gateway.context.sessions() as session:
        return {row.id: row for row in session.scalars(select(Counterfactual))}


def pixels_of(path: Path) -> str:
    return digest(decode(path.read_bytes()))


def test_folders_hold_the_images_and_records_of_the_job(
    gateway: Gateway, rows: dict[str, Counterfactual], tmp_path: Path
) -> None:
    folder = unpacked(gateway, tmp_path)
    records = provenance(folder)
    accepted = {row.id for row in rows.values() if row.arm == "edit" and row.accepted}
    assert {r["id"] for r in records if r["arm"] == "counterfactual"} == accepted
    assert Counter(r["arm"] for r in records)["original"] == 12
    assert {r["null_id"] for r in records if r["arm"] == "counterfactual"} == {
        r["id"] for r in records if r["arm"] == "null_arm"
    }
    for record in records:
        assert pixels_of(folder / record["file"]) == record["image"]
        assert Path(record["file"]).parts[:2] == (record["arm"], record["label"])
        if record["arm"] == "counterfactual":
            row = rows[record["id"]]
            lineage = json.dumps(row.lineage, sort_keys=True, separators=(",", ":"))
            assert record["lineage_digest"] == hashlib.sha256(lineage.encode()).hexdigest()
            assert (record["caption"], record["to_value"], record["seed"]) == (row.caption, row.to_value, row.seed)
            assert (record["scores"], record["verdict"]) == (row.scores, "accepted")
            assert [prediction["model"] for prediction in record["predictions"]] == sorted(MODELS)
    note = json.loads((folder / "contrafact.json").read_text(encoding="utf-8"))
    assert (note["job"], note["models"], note["seed"]) == ("drawn", list(MODELS), 7)


@pytest.mark.slow
def test_folders_load_as_a_hugging_face_imagefolder_and_as_csv(gateway: Gateway, tmp_path: Path) -> None:
    import datasets

    folder = unpacked(gateway, tmp_path / "export")
    table = rows_of(folder / "metadata.csv")
    assert {row["file_name"] for row in table} == {r["file"] for r in provenance(folder)}
    assert {row["night-bus predicted"] for row in table if row["label"] == "boat"} >= {"boat"}
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # it leaves the table open
        loaded = datasets.load_dataset("imagefolder", data_dir=str(folder), cache_dir=str(tmp_path / "cache"))["train"]
        gc.collect()
    assert len(loaded) == len(table)
    by_id = {row["id"]: row for row in table}
    for row in loaded:
        assert (row["label"], row["arm"]) == (by_id[row["id"]]["label"], by_id[row["id"]]["arm"])
        assert row["image"].size == (128, 128)


def test_parquet_loads_with_images_and_class_names(gateway: Gateway, tmp_path: Path) -> None:
    import datasets

    folder = unpacked(gateway, tmp_path / "export", format="huggingface")
    records = {r["id"]: r for r in provenance(unpacked(gateway, tmp_path / "folders"))}
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))["test"]
    assert isinstance(loaded.features["image"], datasets.Image)
    names = loaded.features["label"].names
    assert {"bus", "car", "boat"} <= set(names)
    assert {row["id"] for row in loaded} == set(records)
    for row in loaded:
        record = records[row["id"]]
        assert digest(np.asarray(row["image"].convert("RGB"))) == row["digest"] == record["image"]
        assert names[row["label"]] == record["label"]
        assert {score["name"]: score["value"] for score in row["scores"]} == record["scores"]
        assert row["predictions"] == record["predictions"]
        assert row["changes"] == record["changes"]
        for name in ("arm", "group", "null_id", "factor", "to_value", "verdict", "seed", "lineage_digest"):
            assert row[name] == record[name], name


def test_croissant_describes_the_parquet_files_and_their_columns(gateway: Gateway, tmp_path: Path) -> None:
    folder = unpacked(gateway, tmp_path, format="huggingface")
    described = json.loads((folder / "croissant.json").read_text(encoding="utf-8"))
    *files, rows = described["distribution"]
    assert {file["contentUrl"] for file in files} == {f"data/{path.name}" for path in folder.glob(rows["includes"])}
    for file in files:
        content = (folder / file["contentUrl"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
        assert file["contentSize"] == f"{len(content)} B"
    (records,) = described["recordSet"]
    schema = pq.read_schema(folder / files[0]["contentUrl"])
    lists = {"changes", "scores", "predictions"}
    assert {field["name"] for field in records["field"]} == set(schema.names) - lists
    assert {field["source"]["extract"]["column"] for field in records["field"]} == set(schema.names) - lists


@pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning")  # of rdflib, which it uses
@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame")  # it calls pandas so
def test_croissant_is_read_by_its_library(gateway: Gateway, tmp_path: Path) -> None:
    import mlcroissant

    folder = unpacked(gateway, tmp_path, format="huggingface")
    dataset = mlcroissant.Dataset(jsonld=str(folder / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    assert next(iter(dataset.records(record_set="images")))["images/image"].size == (128, 128)


@pytest.mark.parametrize("format_name", FILES)
def test_generated_images_say_so_in_their_files_and_originals_do_not(
    gateway: Gateway, tmp_path: Path, format_name: str
) -> None:
    folder = unpacked(gateway, tmp_path, format=format_name)
    sources = {r["id"]: r["image"] for r in provenance(folder) if r["arm"] == "original"}
    for record in provenance(folder):
        with Image.open(folder / record["file"]) as image:
            packet = image.info.get("xmp")
        if record["arm"] == "original":
            assert packet is None
            continue
        (description,) = ElementTree.fromstring(packet or "").iter(f"{RDF}Description")
        properties = {
            name: description.get(f"{{{NAMESPACE}}}{name}") for name in ("Job", "Counterfactual", "SourceDigest")
        }
        assert properties == {"Job": "drawn", "Counterfactual": record["id"], "SourceDigest": sources[record["group"]]}
        assert properties["SourceDigest"] == record["source_digest"]
        assert str(description.get(f"{IPTC}DigitalSourceType")).endswith(f"/{record['digital_source_type']}")


def test_a_downloaded_image_says_so_too(gateway: Gateway, rows: dict[str, Counterfactual]) -> None:
    row = next(row for row in rows.values() if row.arm == "edit" and row.image_digest)
    path = f"/images/{row.image_digest}"
    png = gateway.client.get(path).content
    assert b"digitalsourcetype/trainedAlgorithmicMedia" in png
    assert digest(decode(png)) == row.image_digest
    assert int(gateway.client.head(path).headers["content-length"]) == len(png)
    with gateway.context.sessions() as session:
        source = session.scalars(select(SourceImage.digest)).first()
    assert b"digitalsourcetype" not in gateway.client.get(f"/images/{source}").content


def test_a_cached_image_is_fetched_again_once_its_provenance_differs(
    gateway: Gateway, rows: dict[str, Counterfactual]
) -> None:
    row = next(row for row in rows.values() if row.arm == "edit" and row.image_digest)
    path = f"/images/{row.image_digest}"
    first = gateway.client.get(path)
    cached = {"If-None-Match": first.headers["ETag"]}
    small = gateway.client.get(f"/thumbnails/{row.image_digest}")
    for reply in (first, small):
        assert reply.headers["Cache-Control"] == "private, max-age=3600"
    assert gateway.client.get(path, headers=cached).status_code == 304
    with gateway.context.sessions.begin() as session:
        session.get_one(Counterfactual, row.id).arm = "sham"
    again = gateway.client.get(path, headers=cached)
    assert again.status_code == 200
    assert again.content != first.content
    assert again.headers["ETag"] == gateway.client.head(path).headers["ETag"] != first.headers["ETag"]


def test_coco_is_read_by_pycocotools(gateway: Gateway, tmp_path: Path) -> None:
    from pycocotools.coco import COCO

    folder = unpacked(gateway, tmp_path, format="coco")
    with redirect_stdout(io.StringIO()):
        coco = COCO(str(folder / "annotations.json"))
    records = {r["file"]: r for r in provenance(folder)}
    images = coco.loadImgs(coco.getImgIds())
    assert {image["file_name"] for image in images} == set(records)
    names = {category["id"]: category["name"] for category in coco.loadCats(coco.getCatIds())}
    for image in images:
        (annotation,) = coco.loadAnns(coco.getAnnIds(imgIds=[image["id"]], iscrowd=False, areaRng=[0, 1e9]))
        record = records[image["file_name"]]
        assert names[annotation["category_id"]] == record["label"]
        assert (folder / image["file_name"]).is_file()
        assert image["contrafact"] == {key: value for key, value in record.items() if key != "file"}
    (boat,) = coco.getCatIds(catNms=["boat"])
    assert len(coco.getImgIds(catIds=[boat])) == sum(r["label"] == "boat" for r in records.values())


def test_fiftyone_has_a_group_for_each_counterfactual(gateway: Gateway, tmp_path: Path) -> None:
    """Held against the schema that FiftyOne's importer reads; FiftyOne itself needs a MongoDB server."""
    folder = unpacked(gateway, tmp_path, format="fiftyone")
    records = {r["file"]: r for r in provenance(folder)}
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    samples = json.loads((folder / "samples.json").read_text(encoding="utf-8"))["samples"]
    assert (metadata["media_type"], metadata["group_field"], metadata["version"]) == ("group", "group", "1.0.0")
    assert set(metadata["group_media_types"]) == {"original", "null_arm", "counterfactual"}
    fields = {field["db_field"]: field for field in metadata["sample_fields"]}
    always = {"created_at", "last_modified_at"}  # FiftyOne fills these in
    groups: dict[str, dict[str, str]] = {}
    for sample in samples:
        assert set(sample) - {"_media_type", "_rand"} <= set(fields) - always
        assert re.fullmatch("[0-9a-f]{24}", sample["_id"]["$oid"])
        record = records[sample["filepath"]]
        assert sample["ground_truth"]["label"] == record["label"]
        for prediction in record["predictions"]:
            assert sample["predicted_" + prediction["model"].replace("-", "_")]["label"] == prediction["predicted"]
        slices = groups.setdefault(sample["group"]["_id"]["$oid"], {})
        assert sample["group"]["name"] not in slices, "one sample a slice"
        slices[sample["group"]["name"]] = record["id"]
    assert len({sample["_id"]["$oid"] for sample in samples}) == len(samples)
    by_id = {r["id"]: r for r in records.values()}
    triples = {
        (record["group"], record["null_id"], record["id"])
        for record in records.values()
        if record["arm"] == "counterfactual"
    }
    exported = {(g["original"], g["null_arm"], g["counterfactual"]) for g in groups.values() if "counterfactual" in g}
    assert exported == triples
    alone = {g["original"] for g in groups.values() if "counterfactual" not in g}
    assert alone == {i for i, r in by_id.items() if r["arm"] == "original"} - {triple[0] for triple in triples}


@pytest.mark.parametrize("format_name", FILES)
def test_an_export_can_be_submitted_as_a_job(gateway: Gateway, format_name: str) -> None:
    archive = export(gateway, format=format_name).content
    reply = gateway.client.post(
        "/jobs", files={"images": ("e.tar", archive)}, data={"spec": '{"task": "classify it", "models": []}'}
    )
    assert reply.status_code == 202, reply.text
    job = reply.json()
    assert (job["images"], job["labelled"], job["failures"]) == (12, 12, [])
    with gateway.context.sessions() as session:
        before, after = (
            session.execute(
                select(SourceImage.digest, SourceImage.ground_truth)
                .where(SourceImage.job_id == name)
                .order_by(SourceImage.position)
            ).all()
            for name in ("drawn", job["id"])
        )
    assert before == after


def test_a_repacked_export_is_a_job_again_wherever_its_note_lies(gateway: Gateway, tmp_path: Path) -> None:
    folder = unpacked(gateway, tmp_path / "mine")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_file():
                archive.add(path, f"mine/{path.relative_to(folder)}")
    files = {"images": ("e.tar.gz", packed.getvalue())}
    reply = gateway.client.post("/jobs", files=files, data={"spec": '{"task": "classify it", "models": []}'})
    assert reply.status_code == 202, reply.text
    assert (reply.json()["images"], reply.json()["labelled"]) == (12, 12)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [({"format": "huggingface"}, "export the job as folders"), ({"arm": "counterfactual"}, "no originals")],
)
def test_exports_that_cannot_be_submitted_are_refused_with_a_reason(
    gateway: Gateway, query: dict[str, str], sentence: str
) -> None:
    files = {"images": ("e.tar", export(gateway, **query).content)}
    reply = gateway.client.post("/jobs", files=files, data={"task": "classify it"})
    assert reply.status_code == 422
    assert sentence in reply.json()["detail"]
