"""Format `huggingface`: `data/test-NNNNN.parquet` with the images inside, a dataset card and Croissant metadata.

`datasets.load_dataset(folder)["test"]` shows images and class names, because the parquet schema contains the library's
description of the columns. A row is one image; the images of one source image share `group`. If the ground truth are
masks, the column `mask` is the image's label map, and the card lists the class of each value. If it is boxes, the
column `objects` has them as the Hub's data sets do: `bbox` is left, top, width and height in pixels.

`croissant.json` of a Hugging Face export: the dataset described in Croissant 1.0 (JSON-LD of MLCommons).

It names the parquet files with size and SHA-256, and the plain columns of their rows with their types. The lists of a
row (changes, scores, predictions) are left to the parquet schema. It is written by hand against the published format:
the format's library would bring more packages than the gateway has.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from gateway.export.files import Exporting, json_bytes, member, member_of, note_member, safe_name
from shared.schemas.base import Kind
from shared.schemas.boxes import BOXED, TrueBox
from shared.schemas.exports import ExportedImage, ExportNote, Release
from shared.schemas.masks import MaskSpec
from shared.schemas.questions import ASKED
from shared.words.markdown import plain, table

CROISSANT_NAME = "croissant.json"
CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
_PARQUET = "application/x-parquet"
_FILES, _ROWS = "parquet-files", "images"
_TYPES = {"string": "sc:Text", "int64": "sc:Integer", "float64": "sc:Float", "bool": "sc:Boolean"}
_TERMS = (
    "citeAs", "column", "dataBiases", "dataCollection", "equivalentProperty", "extract", "field", "fileProperty",
    "fileObject", "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path",
    "personalSensitiveInformation", "recordSet", "references", "regex", "repeated", "replace", "samplingRate",
    "separator", "source", "subField", "transform",
)  # fmt: skip
_CONTEXT: dict[str, JsonValue] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "sc": "https://schema.org/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS},
}


class Shard(NamedTuple):
    """A parquet file of the archive: its path, SHA-256 (hexadecimal) and size in bytes."""

    path: str
    sha256: str
    bytes: int


def croissant(note: ExportNote, shards: Sequence[Shard], columns: Mapping[str, str]) -> dict[str, JsonValue]:
    """The description of an export. `columns`: the plain columns of its rows, each with its Arrow type."""
    pictures = ["image", *(["mask"] if note.masks is not None else [])]
    labels = {} if note.masks is not None or note.kind in BOXED else {"label": "int64"}
    fields: list[JsonValue] = [_field(name, "sc:ImageObject", {"jsonPath": "bytes"}) for name in pictures]
    fields += [_field(name, _TYPES[kind]) for name, kind in {**labels, **columns}.items()]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": safe_name(note.release.title) if note.release else f"contrafact-{safe_name(note.job)}",
        "description": f"Counterfactual test images of Contrafact job {note.job}: {note.task_description}. Originals, "
        "generated counterfactuals and their null arms, with labels, verdicts and predictions. `label` counts from 0 "
        f"in {note.classes}.",
        **({} if note.release is None else {"license": note.release.licence, "citeAs": note.release.attribution}),
        "creator": {"@type": "sc:Organization", "name": "Contrafact"},
        "isLiveDataset": False,
        "distribution": [
            *(_file(shard) for shard in shards),
            {"@type": "cr:FileSet", "@id": _FILES, "encodingFormat": _PARQUET, "includes": "data/test-*.parquet"},
        ],
        "recordSet": [
            {"@type": "cr:RecordSet", "@id": _ROWS, "name": _ROWS, "key": {"@id": _id("id")}, "field": fields}
        ],
    }


def _file(shard: Shard) -> dict[str, JsonValue]:
    return {
        "@type": "cr:FileObject",
        "@id": shard.path,
        "name": shard.path.rpartition("/")[2],
        "contentUrl": shard.path,
        "contentSize": f"{shard.bytes} B",
        "encodingFormat": _PARQUET,
        "sha256": shard.sha256,
    }


def _field(name: str, data_type: str, transform: JsonValue = None) -> dict[str, JsonValue]:
    source: dict[str, JsonValue] = {"fileSet": {"@id": _FILES}, "extract": {"column": name}}
    if transform is not None:
        source["transform"] = transform
    return {"@type": "cr:Field", "@id": _id(name), "name": name, "dataType": data_type, "source": source}


def _id(column: str) -> str:
    return f"{_ROWS}/{column}"


GROUP_BYTES = 16 * 1024**2  # images in memory
SHARD_BYTES = 256 * 1024**2

_TEXT = {"dtype": "string", "_type": "Value"}
_PREDICTION = {
    "model": "string", "predicted": "string", "probability": "float64",
    "ground_truth_probability": "float64", "rank": "int64", "flipped": "bool",
}  # fmt: skip
_CHANGE = dict.fromkeys(("factor", "from_phrase", "to_phrase", "from_value", "to_value"), "string")
_SCORE = {"name": "string", "value": "float64"}
_VALUES = {
    "arm": "string", "id": "string", "group": "string", "null_id": "string", "position": "int64",
    "source_name": "string", "digest": "string", "method": "string", "ordinal": "int64", "seed": "int64",
    "factor": "string", "from_value": "string", "to_value": "string", "caption": "string", "new_caption": "string",
    "verdict": "string", "check": "string", "reason": "string", "lineage_digest": "string",
    "source_digest": "string", "digital_source_type": "string",
}  # fmt: skip
_IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
_BOX = pa.struct(
    {
        "bbox": pa.list_(pa.float64(), 4),
        "category": pa.int64(),
        "area": pa.float64(),
        "iscrowd": pa.bool_(),
        "difficult": pa.bool_(),
    }
)
_LISTS = {"changes": _CHANGE, "scores": _SCORE, "predictions": _PREDICTION}
_ARROW = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}


def huggingface(export: Exporting) -> Iterator[bytes]:
    """The archive as a stream of chunks. A shard of up to 256 MB is written to a temporary file first.

    `croissant.json` comes last, because it has the digests of the shards.
    """
    yield from note_member(export)
    yield from member("README.md", _card(export).encode())
    schema = _schema(export.note)
    rows = _row_groups(export)
    shards: list[Shard] = []
    group = next(rows, None)
    while group is not None or not shards:
        with tempfile.TemporaryFile() as file:
            with pq.ParquetWriter(file, schema) as writer:
                while group is not None and file.tell() < SHARD_BYTES:
                    writer.write_table(pa.Table.from_pylist(group, schema))
                    group = next(rows, None)
            path = f"data/test-{len(shards):05}.parquet"
            shards.append(_shard(path, file))
            yield from member_of(path, file)
    yield from member(CROISSANT_NAME, json_bytes(croissant(export.note, shards, _VALUES), indent=1) + b"\n")


def _shard(path: str, file: IO[bytes]) -> Shard:
    """The description of a parquet file, which is left at its end."""
    size = file.tell()
    file.seek(0)
    return Shard(path, hashlib.file_digest(file, "sha256").hexdigest(), size)  # type: ignore[arg-type]


def _row_groups(export: Exporting) -> Iterator[list[dict[str, object]]]:
    classes = {name: number for number, name in enumerate(export.note.classes)}
    rows: list[dict[str, object]] = []
    size = 0
    for image in export.images:
        pictures = {"image": export.picture(image)}
        if image.mask is not None:
            pictures["mask"] = export.read(image.mask)
        size += sum(map(len, pictures.values()))
        rows.append(_row(image, export.path(image), pictures, classes))
        if size >= GROUP_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _row(image: ExportedImage, path: str, pictures: dict[str, bytes], classes: dict[str, int]) -> dict[str, object]:
    """A row. Its columns are those of all kinds of jobs; the schema selects the ones of this job."""
    columns = image.model_dump(mode="json")
    return {
        **{name: columns[name] for name in _VALUES if name != "digest"},
        "digest": image.image,
        **{name: {"bytes": png, "path": path.rpartition("/")[2]} for name, png in pictures.items()},
        "label": None if image.label is None else classes[image.label],
        "objects": None if image.boxes is None else [_object(box, classes) for box in image.boxes],
        "scores": [{"name": name, "value": value} for name, value in sorted(image.scores.items())],
        "changes": columns["changes"],
        "predictions": columns["predictions"],
    }


def _object(box: TrueBox, classes: dict[str, int]) -> dict[str, object]:
    left, top, right, bottom = box.box
    width, height = right - left, bottom - top
    return {
        "bbox": [left, top, width, height],
        "category": classes[box.label],
        "area": width * height if box.area is None else box.area,
        "iscrowd": box.ignore == "crowd",
        "difficult": box.ignore == "difficult",
    }


def _schema(note: ExportNote) -> pa.Schema:
    """The columns for Arrow. The schema's metadata describes them to `datasets` (its Features as JSON)."""
    fields = [pa.field("image", _IMAGE)]
    features: dict[str, object] = {"image": {"_type": "Image"}}
    if note.kind in BOXED:
        fields.append(pa.field("objects", pa.list_(_BOX)))
        plain_values = {"area": "float64", "iscrowd": "bool", "difficult": "bool"}
        inner: dict[str, object] = {
            "bbox": {"feature": {**_TEXT, "dtype": "float64"}, "length": 4, "_type": "List"},
            "category": {"names": note.classes, "_type": "ClassLabel"},
            **{column: {**_TEXT, "dtype": kind} for column, kind in plain_values.items()},
        }
        features["objects"] = {"feature": inner, "_type": "List"}
    elif note.masks is None:
        fields.append(pa.field("label", pa.int64()))
        features["label"] = {"names": note.classes, "_type": "ClassLabel"}
    else:
        fields.append(pa.field("mask", _IMAGE))
        features["mask"] = {"_type": "Image"}
    for name, kind in _VALUES.items():
        fields.append(pa.field(name, _ARROW[kind]))
        features[name] = {**_TEXT, "dtype": kind}
    for name, columns in _LISTS.items():
        fields.append(pa.field(name, pa.list_(pa.struct({key: _ARROW[kind] for key, kind in columns.items()}))))
        features[name] = {"feature": {key: {**_TEXT, "dtype": k} for key, k in columns.items()}, "_type": "List"}
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": features}})})


def _category(kind: Kind) -> str:
    """The Hub's name of a kind of task."""
    return "visual-question-answering" if kind in ASKED else f"{'object' if kind in BOXED else 'image'}-{kind}"


def _card(export: Exporting) -> str:
    note, release = export.note, export.note.release
    head = [
        f"task_categories: [{_category(note.kind)}]",
        "configs:",
        "- config_name: default",
        "  data_files:",
    ]
    head += ["  - split: test", "    path: data/test-*.parquet"]
    if release is not None:
        head += [f"license: {release.licence.lower()}", f"pretty_name: {json.dumps(release.title)}"]
        head += ["tags: [counterfactual, robustness, synthetic]"]
    return "\n".join(["---", *head, "---", *_about(note), *(_released(note, release) if release else [])]) + (
        "\n" if note.masks is None else f"\n{_values(note.masks)}"
    )


def _about(note: ExportNote) -> list[str]:
    title = plain(note.release.title) if note.release else "Counterfactual test images"
    return [
        f"# {title}",
        "",
        f"Generated by Contrafact, job {note.job}. `arm` is the kind of image: an original, a counterfactual, or a",
        "null arm (made by the same method and seed, with nothing changed). Images of one source share `group`.",
        "`contrafact.json` describes how they were generated.",
    ]


def _released(note: ExportNote, release: Release) -> list[str]:
    """The sections of a published suite: how to use it, licences, provenance."""
    methods = ", ".join(plain(method.name) for method in note.methods)
    lines = [
        "",
        f"What the model under test does: {plain(note.task_description)}.",
        f"Made by {methods} under profile {plain(note.profile)}, seed {note.seed}. Counterfactuals and arms passed",
        "the automatic checks, whose scores are in `scores`; they are no human labels.",
        "",
        "```python",
        'images = datasets.load_dataset("FOLDER_OR_REPOSITORY", split="test")  # compare each edit with its null arm',
        "```",
        "",
        "## Licences",
        "",
        f"This data set: {plain(release.licence)}. {plain(release.attribution)}".rstrip(),
        "Counterfactuals and null arms are synthetic (`digital_source_type`, XMP). The weights that made them:",
        "",
    ]
    parts = [(name, part) for name, service in note.services.items() for part in service.weights]
    rows = ([name, part.role, part.id, part.revision, part.licence] for name, part in parts)
    lines += table(["service", "role", "weights", "revision", "licence"], [list(map(plain, row)) for row in rows])
    if not parts:
        lines += ["", "The job that made them had no report, so its weights are not known."]
    lines += ["", "## Provenance", ""]
    versions = ", ".join(f"{name} {number}" for name, number in note.versions.items())
    lines += [f"Versions: {plain(versions) or 'not known'}. Rows have the digest of their lineage (`lineage_digest`)."]
    return lines


def _values(masks: MaskSpec) -> str:
    """The class of each mask value, as a table for the card."""
    classes = [(mask.index, mask.name.replace("|", "\\|")) for mask in masks.classes]
    classes += [(void, "void (not evaluated)") for void in masks.void if isinstance(void, int)]
    rows = "\n".join(f"| {value} | {name} |" for value, name in classes)
    return f"""
`mask` is the ground truth of every pixel, as grey values. `contrafact.json` lists them, too:

| value | class |
|---|---|
{rows}
"""
