"""The export of one job. `open_export` checks access; `Export.chunks` streams the archive.

Format `coco`: files, and `annotations.json` in COCO's layout; a class is a category of the whole image.

Each labelled image has one annotation without a box (its `area` is the image's), each image with boxes one for each
object. `file_name` is relative to the
archive's root. The image's key `contrafact` has all provenance.

Format `folders`: class folders under each arm, and `metadata.csv` beside them.

torchvision's ImageFolder reads each of `original/`, `null_arm/` and `counterfactual/`.
`datasets.load_dataset("imagefolder", data_dir=...)` reads the whole folder with the columns of `metadata.csv`.
Boxes of a detection job are label files of YOLO beside the images, and `data.yaml`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic import JsonValue
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Job, Report, SourceImage, Suite
from gateway.export.fiftyone import fiftyone
from gateway.export.files import (
    END,
    Exporting,
    class_folders,
    image_files,
    json_bytes,
    member,
    member_of,
    safe_name,
    temporary_member,
)
from gateway.export.huggingface import huggingface
from gateway.export.selection import Selection, exported_images
from gateway.feedback.notes import findings_of, load_notes, with_notes
from gateway.jobs import jobs
from gateway.jobs.task_description import rename_masks
from shared import __version__
from shared.characters import csv_cell
from shared.media.box_formats import BoxedImage, coco_annotations, yolo_lines, yolo_settings
from shared.media.label_maps import VOID
from shared.media.storage import ObjectStore, image_key
from shared.problems import Conflict
from shared.schemas.exports import ExportedImage, ExportNote, FormatName, Release
from shared.schemas.masks import MaskClass, MaskSpec
from shared.schemas.results import HowMade
from shared.seeds import derive_digest

_COLUMNS = (
    "label", "arm", "id", "group", "null_id", "position", "source_name", "method", "ordinal", "seed", "factor",
    "from_value", "to_value", "caption", "new_caption", "verdict", "check", "reason", "lineage_digest", "source_digest",
    "digital_source_type",
)  # fmt: skip


def folders(export: Exporting) -> Iterator[bytes]:
    """The archive as a stream of chunks. Each model under test has two columns: prediction and flip."""
    models = export.note.models
    with temporary_member() as table:
        text = io.TextIOWrapper(table, encoding="utf-8", newline="", write_through=True)
        rows = csv.writer(text, lineterminator="\n")
        model_columns = [f"{model} {field}" for model in models for field in ("predicted", "flipped")]
        rows.writerow(["file_name", *_COLUMNS, *map(csv_cell, model_columns)])

        labels, arms = dict[str, bytes](), dict[str, None]()

        def add_image(image: ExportedImage, path: str) -> None:
            if image.boxes is not None:
                labels[path] = yolo_lines(_boxed(image, path), export.note.classes)
                arms[image.arm] = None
            columns = [*(getattr(image, name) for name in _COLUMNS), *_predictions(image, models)]
            rows.writerow([path, *map(csv_cell, columns)])

        yield from image_files(export, add_image)
        text.detach()
        yield from member_of("metadata.csv", table)
        for path, lines in labels.items():
            yield from member(f"{path.rpartition('.')[0]}.txt", lines)
        if labels:
            yield from member("data.yaml", yolo_settings(export.note.classes, [*arms], [next(iter(arms))]))


def _predictions(image: ExportedImage, models: list[str]) -> Iterator[object]:
    predictions = {prediction.model: prediction for prediction in image.predictions}
    for model in models:
        prediction = predictions.get(model)
        yield prediction.predicted if prediction else None
        yield prediction.flipped if prediction else None


def coco(export: Exporting) -> Iterator[bytes]:
    """The archive as a stream of chunks."""
    numbers = {name: number for number, name in enumerate(export.note.classes, start=1)}
    categories = [{"id": number, "name": name, "supercategory": ""} for name, number in numbers.items()]
    with temporary_member() as images, temporary_member() as annotations:
        info = {"description": f"Contrafact job {export.note.job}: {export.note.task_description}", "version": "1.0"}
        images.write(b'{"info": ' + json_bytes(info) + b', "licenses": [], "categories": ')
        images.write(json_bytes(categories) + b',\n"images": [')
        annotations.write(b'],\n"annotations": [')
        counts = {"images": 0, "annotations": 0}

        def add_image(image: ExportedImage, path: str) -> None:
            counts["images"] += 1
            number = counts["images"]
            images.write((b",\n" if number > 1 else b"\n") + json_bytes(_image_entry(image, path, number)))
            entries = [] if image.label is None else [_annotation(image, number, numbers[image.label])]
            entries += coco_annotations(_boxed(image, path), number, numbers)
            for entry in entries:
                counts["annotations"] += 1
                annotations.write(b",\n" if counts["annotations"] > 1 else b"\n")
                annotations.write(json_bytes({"id": counts["annotations"], **entry}))

        yield from image_files(export, add_image)
        annotations.write(b"]}\n")
        yield from member_of("annotations.json", images, annotations)


def _image_entry(image: ExportedImage, path: str, number: int) -> dict[str, JsonValue]:
    return {
        "id": number,
        "file_name": path,
        "width": image.width,
        "height": image.height,
        "contrafact": image.model_dump(mode="json"),
    }


def _boxed(image: ExportedImage, path: str) -> BoxedImage:
    return BoxedImage(path, tuple(image.boxes or ()), (image.width, image.height))


def _annotation(image: ExportedImage, image_number: int, category: int) -> dict[str, JsonValue]:
    return {
        "image_id": image_number,
        "category_id": category,
        "area": image.width * image.height,
        "iscrowd": 0,
    }


FORMATS: dict[FormatName, Callable[[Exporting], Iterator[bytes]]] = {
    "folders": folders,
    "huggingface": huggingface,
    "coco": coco,
    "fiftyone": fiftyone,
}


@dataclass(frozen=True, slots=True)
class Export:
    """An export: its file name, a tag that changes with its content, and its note."""

    file_name: str
    tag: str
    note: ExportNote
    selection: Selection

    def chunks(self, sessions: Sessions, store: ObjectStore) -> Iterator[bytes]:
        """The archive (tar). Raises errors of database and store, and NotFound if the job is deleted meanwhile."""
        export = Exporting(
            note=self.note,
            folders=class_folders(self.note.classes),
            images=exported_images(sessions, self.note.job, self.selection),
            read=lambda digest: store.get(image_key(digest)),
        )
        yield from FORMATS[self.note.format](export)
        yield END


def open_export(sessions: Sessions, owner: str, job_id: str, format_name: FormatName, selection: Selection) -> Export:
    """The export of the owner's job. Raises NotFound, and Conflict while the job runs."""
    with reading(sessions) as session:
        job = jobs.find(session, owner, job_id)
        if job.state == "running":
            raise Conflict("the job is running; export it when it is done, or cancel it first")
        report = session.get(Report, job_id)
        results = with_notes(report.results, load_notes(session, job_id)) if report else None
        note = _note(session, job, format_name, selection, results.made if results else None)
    note = note.model_copy(update={"findings": findings_of(results) if results else []})
    return Export(f"contrafact-{job_id}-{format_name}.tar", _tag(job, note), note, selection)


def open_suite(session: Session, suite: Suite, release: Release) -> Export:
    """A suite as a data set in the Hub's layout, with the provenance that its job had."""
    job, selection = session.get_one(Job, suite.id), Selection(verdict="any")
    made = HowMade.model_validate(job.spec["made"]) if "made" in job.spec else None
    described = {
        "release": release.model_copy(update={"title": release.title or suite.name}),
        "filters": suite.filters.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    note = _note(session, job, "huggingface", selection, made).model_copy(update=described)
    return Export(f"{safe_name(suite.name)}.tar", _tag(job, note), note, selection)


def _note(
    session: Session, job: Job, format_name: FormatName, selection: Selection, provenance: HowMade | None
) -> ExportNote:
    labels = session.scalars(
        select(SourceImage.ground_truth)
        .where(SourceImage.job_id == job.id, SourceImage.ground_truth.is_not(None))
        .distinct()
        .order_by(SourceImage.ground_truth)
    ).all()
    return ExportNote(
        format=format_name,
        job=job.id,
        task_description=job.task_description,
        methods=[method.choice() for method in job.methods],
        models=job.models,
        kind=job.kind,
        classes=list(dict.fromkeys([*job.classes, *(label for label in labels if label is not None)])),
        masks=_masks(job),
        profile=job.profile,
        seed=job.seed,
        filters=selection.model_dump(mode="json", exclude_defaults=True, by_alias=True),
        services=provenance.services if provenance else {},
        versions=provenance.versions if provenance else {},
    )


def _masks(job: Job) -> MaskSpec | None:
    """The meaning of the masks in the archive: indices of the job's classes."""
    masks = rename_masks(job)
    if masks is None:
        return None
    classes = [MaskClass(name=name, index=index, thing=name in masks.things) for index, name in enumerate(job.classes)]
    return MaskSpec(classes=classes, void=[VOID])


def _tag(job: Job, note: ExportNote) -> str:
    """A digest of the archive's content. Every change of a job adds an event, so equal tags mean equal archives."""
    return derive_digest("export", __version__, job.events, str(job.finished_at), note.model_dump_json()).hex()
