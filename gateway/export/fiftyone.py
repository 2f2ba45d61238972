"""Format `fiftyone`: files, and FiftyOne's own serialised dataset (`metadata.json`, `samples.json`), grouped.

A group has the slices `original`, `null_arm` and `counterfactual`, so that the app shows the three images side by side.
An original without exported counterfactuals is a group of its own. Samples of one source image share `source`. The
boxes of detection jobs are `Detections`: those of the ground truth, and those that each model's score counts. The
schema is the one of FiftyOne 1.0; later versions migrate it when they import the dataset:
`fiftyone.Dataset.from_dir(folder, dataset_type=fiftyone.types.FiftyOneDataset)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import IO

from gateway.export.files import Exporting, image_files, json_bytes, member_of, safe_name, temporary_member
from shared.schemas.boxes import BOXED, PredictedBox, TrueBox
from shared.schemas.exports import ExportedImage, ExportedPrediction
from shared.schemas.results import ARMS
from shared.seeds import derive_id

VERSION = "1.0.0"
_FIELDS = "fiftyone.core.fields."
_LABELS = "fiftyone.core.labels."
_TEXTS = (
    "source", "arm", "source_name", "method", "factor", "from_value", "to_value", "caption", "new_caption", "verdict",
    "check", "reason", "lineage_digest", "source_digest", "digital_source_type",
)  # fmt: skip
_NUMBERS = ("position", "ordinal", "seed")


def fiftyone(export: Exporting) -> Iterator[bytes]:
    """The archive as a stream of chunks."""
    models = _prediction_fields(export.note.models)
    members: list[tuple[ExportedImage, str]] = []  # the images of the current source image
    with temporary_member() as samples, temporary_member() as metadata:
        samples.write(b'{"samples": [')
        entries = _ListWriter(samples)

        def add_image(image: ExportedImage, path: str) -> None:
            if members and members[0][0].group != image.group:
                entries.write_all(_samples(members, models))
                members.clear()
            members.append((image, path))

        yield from image_files(export, add_image)
        entries.write_all(_samples(members, models))
        samples.write(b"]}\n")
        yield from member_of("samples.json", samples)
        metadata.write(json_bytes(_metadata(export, models), indent=1) + b"\n")
        yield from member_of("metadata.json", metadata)


def _prediction_fields(models: list[str]) -> dict[str, str]:
    """A field name for each model under test. FiftyOne allows letters, digits and underscores."""
    fields: dict[str, str] = {}
    for number, model in enumerate(models):
        field = "predicted_" + re.sub(r"[^a-z0-9]+", "_", model.lower())
        fields[model] = f"{field}_{number}" if field in fields.values() else field
    return fields


class _ListWriter:
    """Writes the entries of a JSON list, separated by commas."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._first = file, True

    def write_all(self, entries: Iterator[dict[str, object]]) -> None:
        for entry in entries:
            self._file.write((b"\n" if self._first else b",\n") + json_bytes(entry))
            self._first = False


def _samples(images: list[tuple[ExportedImage, str]], models: dict[str, str]) -> Iterator[dict[str, object]]:
    """The samples of one source image, group by group."""
    by_id = {image.id: (image, path) for image, path in images}
    original = next((pair for pair in images if pair[0].arm == "original"), None)
    edits = [pair for pair in images if pair[0].arm == "counterfactual"]
    groups = [[original, by_id.get(edit[0].null_id or ""), edit] for edit in edits]
    if not edits:  # each null arm is a group if no counterfactuals are exported
        groups = [[original, pair] for pair in images if pair[0].arm == "null_arm"] or [[original]]
    for group in groups:
        members = [pair for pair in group if pair is not None]
        group_id = _object_id("group", members[-1][0].id)
        for image, path in members:
            yield _sample(image, path, group_id, models)


def _sample(image: ExportedImage, path: str, group: dict[str, str], models: dict[str, str]) -> dict[str, object]:
    columns = image.model_dump(mode="json")
    sample_id = _object_id("sample", group["$oid"], image.id)
    predictions = {models[prediction.model]: prediction for prediction in image.predictions}
    truth = None if image.label is None else _classification(sample_id, "ground_truth", image.label, None)
    if image.boxes is not None:
        truth = _detections(sample_id, "ground_truth", image, image.boxes)
    return {
        "_id": sample_id,
        "_media_type": "image",
        "_rand": int(sample_id["$oid"][:8], 16) / 2**32,
        "filepath": path,
        "tags": [image.arm, *([image.verdict] if image.verdict else [])],
        "metadata": None,
        "group": {"_id": group, "_cls": "Group", "name": image.arm},
        "ground_truth": truth,
        **{field: _prediction(sample_id, field, prediction, image) for field, prediction in predictions.items()},
        **{name: columns[name] or None for name in _TEXTS if name != "source"},
        **{name: columns[name] for name in _NUMBERS},
        "source": image.group,
        "scores": image.scores,
    }


def _classification(sample: dict[str, str], field: str, label: str, confidence: float | None) -> dict[str, object]:
    return {
        "_id": _object_id(sample["$oid"], field),
        "_cls": "Classification",
        "tags": [],
        "label": label,
        "confidence": confidence,
        "logits": None,
    }


def _prediction(
    sample: dict[str, str], field: str, prediction: ExportedPrediction, image: ExportedImage
) -> dict[str, object]:
    if prediction.detected is None:
        return _classification(sample, field, prediction.predicted, prediction.probability)
    matched = [thing.prediction for thing in prediction.detected.objects if thing.prediction]
    return _detections(sample, field, image, [*matched, *prediction.detected.extras])


def _detections(
    sample: dict[str, str], field: str, image: ExportedImage, boxes: Sequence[TrueBox | PredictedBox]
) -> dict[str, object]:
    """Boxes in fractions of the image. `iscrowd` is COCO's, as FiftyOne's evaluation reads it."""
    entries = []
    for number, box in enumerate(boxes):
        left, top, right, bottom = box.box
        sides = (left / image.width, top / image.height, (right - left) / image.width, (bottom - top) / image.height)
        own = (
            {"iscrowd": box.ignore == "crowd", "difficult": box.ignore == "difficult"}
            if isinstance(box, TrueBox)
            else {}
        )
        entries.append(
            {
                **_classification(sample, f"{field} {number}", box.label, getattr(box, "score", None)),
                "_cls": "Detection",
                "attributes": {},
                "bounding_box": [*sides],
                "index": None,
                "iscrowd": None,
                "difficult": None,
                **own,
            }
        )
        del entries[-1]["logits"]
    return {"_cls": "Detections", "detections": entries}


def _object_id(*parts: str) -> dict[str, str]:
    return {"$oid": derive_id("fiftyone", *parts)[:24]}


def _metadata(export: Exporting, models: dict[str, str]) -> dict[str, object]:
    """FiftyOne's description of the dataset and its fields."""
    note = export.note
    return {
        "name": f"contrafact-{safe_name(note.job)}",
        "version": VERSION,
        "media_type": "group",
        "group_field": "group",
        "group_media_types": dict.fromkeys(ARMS, "image"),
        "default_group_slice": "original",
        "tags": ["contrafact"],
        "info": note.model_dump(mode="json"),
        "classes": {},
        "default_classes": note.classes,
        "mask_targets": {},
        "default_mask_targets": {},
        "skeletons": {},
        "sample_fields": _fields(models, note.kind in BOXED),
        "frame_fields": [],
        "saved_views": [],
        "workspaces": [],
        "annotation_runs": {},
        "brain_methods": {},
        "evaluations": {},
        "runs": {},
    }


def _fields(models: dict[str, str], boxed: bool) -> list[dict[str, object]]:
    id_field = [_field("_id", "ObjectIdField", name="id")]
    tags = _field("tags", "ListField", subfield="StringField")
    common = [*id_field, tags, _field("label", "StringField"), _field("confidence", "FloatField")]
    label, kind = [*common, _field("logits", "VectorField")], "Classification"
    if boxed:
        box = [
            *common,
            _field("attributes", "DictField"),
            _field("bounding_box", "ListField", subfield="FloatField"),
            _field("index", "IntField"),
            _field("iscrowd", "BooleanField"),
            _field("difficult", "BooleanField"),
        ]
        of_box = "EmbeddedDocumentField"
        label = [_field("detections", "ListField", subfield=of_box, document=f"{_LABELS}Detection", fields=box)]
        kind = "Detections"
    file = [_field("size_bytes", "IntField"), _field("mime_type", "StringField")]
    return [
        *id_field,
        _field("filepath", "StringField"),
        tags,
        _field("metadata", "EmbeddedDocumentField", document="fiftyone.core.metadata.Metadata", fields=file),
        _field("created_at", "DateTimeField", read_only=True),
        _field("last_modified_at", "DateTimeField", read_only=True),
        _field(
            "group",
            "EmbeddedDocumentField",
            document="fiftyone.core.groups.Group",
            fields=[*id_field, _field("name", "StringField")],
        ),
        _field("ground_truth", "EmbeddedDocumentField", document=_LABELS + kind, fields=label),
        *(
            _field(
                field,
                "EmbeddedDocumentField",
                document=_LABELS + kind,
                fields=label,
                description=f"model under test {name}",
            )
            for name, field in models.items()
        ),
        *(_field(name, "StringField") for name in _TEXTS),
        *(_field(name, "IntField") for name in _NUMBERS),
        _field("scores", "DictField"),
    ]


def _field(
    stored: str,
    kind: str,
    *,
    name: str | None = None,
    subfield: str | None = None,
    document: str | None = None,
    fields: list[dict[str, object]] | None = None,
    description: str | None = None,
    read_only: bool = False,
) -> dict[str, object]:
    """A field of the samples in FiftyOne's schema. `stored`: its name in FiftyOne's database."""
    return {
        "name": name or stored,
        "ftype": _FIELDS + kind,
        "subfield": None if subfield is None else _FIELDS + subfield,
        "embedded_doc_type": document,
        "db_field": stored,
        "fields": fields or [],
        "description": description,
        "info": None,
        "read_only": read_only,
    }
