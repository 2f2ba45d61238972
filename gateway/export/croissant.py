"""`croissant.json` of a Hugging Face export: the dataset described in Croissant 1.0 (JSON-LD of MLCommons).

It names the parquet files with size and SHA-256, and the plain columns of their rows with their types. The lists of a
row (changes, scores, predictions) are left to the parquet schema. It is written by hand against the published format:
the format's library would bring more packages than the gateway has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from gateway.export.names import safe_name
from shared.schemas.exports import ExportNote

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
    labels = {} if note.masks is not None else {"label": "int64"}
    fields: list[JsonValue] = [_field(name, "sc:ImageObject", {"jsonPath": "bytes"}) for name in pictures]
    fields += [_field(name, _TYPES[kind]) for name, kind in {**labels, **columns}.items()]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": f"contrafact-{safe_name(note.job)}",
        "description": f"Counterfactual test images of Contrafact job {note.job}: {note.task_description}. Originals, "
        "generated counterfactuals and their null arms, with labels, verdicts and predictions. `label` counts from 0 "
        f"in {note.classes}.",
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
