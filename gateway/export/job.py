"""The export of one job. `open_export` checks access; `Export.chunks` streams the archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import select

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Job, Report, SourceImage
from gateway.export.archive import END
from gateway.export.coco import coco
from gateway.export.fiftyone import fiftyone
from gateway.export.files import Exporting
from gateway.export.folders import folders
from gateway.export.huggingface import huggingface
from gateway.export.names import class_folders
from gateway.export.selection import Selection, exported_images
from gateway.feedback.notes import findings_of, load_notes, with_notes
from gateway.jobs import jobs
from gateway.jobs.task_description import rename_masks
from shared import __version__
from shared.label_maps import VOID
from shared.problems import Conflict
from shared.schemas.exports import ExportNote, FormatName
from shared.schemas.masks import MaskClass, MaskSpec
from shared.seeds import derive_digest
from shared.storage import ObjectStore, image_key

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
        labels = session.scalars(
            select(SourceImage.ground_truth)
            .where(SourceImage.job_id == job_id, SourceImage.ground_truth.is_not(None))
            .distinct()
            .order_by(SourceImage.ground_truth)
        ).all()
    masks = _masks(job)
    provenance = results.made if results else None
    note = ExportNote(
        format=format_name,
        job=job.id,
        task_description=job.task_description,
        methods=[method.choice() for method in job.methods],
        models=job.models,
        classes=list(dict.fromkeys([*job.classes, *(label for label in labels if label is not None)])),
        masks=masks,
        profile=job.profile,
        seed=job.seed,
        filters=selection.model_dump(mode="json", exclude_defaults=True, by_alias=True),
        services=provenance.services if provenance else {},
        versions=provenance.versions if provenance else {},
        findings=findings_of(results) if results else [],
    )
    return Export(f"contrafact-{job_id}-{format_name}.tar", _tag(job, note), note, selection)


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
