"""The images of an export: originals, the counterfactuals that match the filters, and their null arms, page by page.

No session is open between pages, so that a slow reader blocks nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Counterfactual, Image, Job, Prediction, SourceImage, has_class
from gateway.methods.checks import lost_objects
from gateway.results.filters import Filters, Verdict, conditions
from gateway.results.pairing import Triple, load_triples
from gateway.results.provenance import digital_source_of
from gateway.results.views import answers_in, detected_in, truth_in
from shared.problems import NotFound
from shared.schemas.boxes import TrueBox
from shared.schemas.exports import ExportedImage, ExportedPrediction
from shared.schemas.questions import ImageQuestion
from shared.schemas.results import ARMS, Arm, ChangeView

SOURCES_PER_PAGE = 50


class Selection(Filters):
    """The filters of the results; without `verdict` counterfactuals that count. `arm`: which images are taken."""

    verdict: Annotated[Verdict | None, Field(description="counted, accepted, rejected or any")] = "counted"
    arm: Annotated[
        list[Arm], Field(description="which images: original, null_arm, counterfactual; default: all", max_length=3)
    ] = Field(default_factory=list)


class _SourceImages(NamedTuple):
    """A source image with its counterfactuals and null arms, by method, null arms first; `null_ids` by edit."""

    source: SourceImage
    rows: list[Counterfactual]
    null_ids: dict[str, str]


def exported_images(sessions: Sessions, job_id: str, selection: Selection) -> Iterator[ExportedImage]:
    """Every image once, by source position: the original, then null arms and counterfactuals by method.

    The originals are all source images, or those of the selected class. Raises NotFound if the job is deleted.
    """
    after: int | None = -1
    while after is not None:
        with reading(sessions) as session:
            if session.get(Job, job_id) is None:
                raise NotFound(f"job {job_id} was deleted during the export")
            page, after = _page(session, job_id, selection, after)
            records = _records(session, page, set(selection.arm or ARMS))
        yield from records


def _page(session: Session, job_id: str, selection: Selection, after: int) -> tuple[list[_SourceImages], int | None]:
    """The source images after a position with their images, and the last position; None on the last page."""
    query = select(SourceImage).where(
        SourceImage.job_id == job_id, SourceImage.position > after, SourceImage.digest.is_not(None)
    )
    if selection.label is not None:
        query = query.where(has_class(selection.label))
    sources = session.scalars(query.order_by(SourceImage.position).limit(SOURCES_PER_PAGE)).all()
    edits = session.scalars(
        select(Counterfactual).where(
            Counterfactual.source_image_id.in_([source.id for source in sources]),
            Counterfactual.image_digest.is_not(None),
            Counterfactual.arm == "edit",
            *conditions(selection),
        )
    ).all()
    by_source: dict[str, list[Triple[Counterfactual]]] = defaultdict(list)
    for triple in load_triples(session, edits):
        by_source[triple.original].append(triple)
    page = [_images_of(source, by_source[source.id]) for source in sources]
    return page, sources[-1].position if len(sources) == SOURCES_PER_PAGE else None


def _images_of(source: SourceImage, members: Sequence[Triple[Counterfactual]]) -> _SourceImages:
    nulls = {triple.edit.id: triple.null for triple in members if triple.null and triple.null.image_digest}
    rows = {row.id: row for row in [*(triple.edit for triple in members), *nulls.values()]}
    return _SourceImages(
        source,
        sorted(rows.values(), key=lambda row: (row.method, row.arm == "edit", row.ordinal)),
        {edit_id: row.id for edit_id, row in nulls.items()},
    )


def _records(session: Session, page: Sequence[_SourceImages], arms: set[Arm]) -> list[ExportedImage]:
    digests = {entry.source.digest for entry in page} | {row.image_digest for entry in page for row in entry.rows}
    sizes = {
        image.digest: (image.width, image.height)
        for image in session.scalars(select(Image).where(Image.digest.in_(digests)))
    }
    predictions = _predictions(session, [entry.source for entry in page])
    records = []
    for source, rows, null_ids in page:
        if "original" in arms:
            records.append(_original(source, sizes, predictions[source.id]))
        for row in rows:
            if ("null_arm" if row.arm == "null" else "counterfactual") in arms:
                records.append(_counterfactual(source, row, null_ids.get(row.id), sizes, predictions[row.id]))
    return records


def _original(
    source: SourceImage, sizes: dict[str, tuple[int, int]], predictions: list[ExportedPrediction]
) -> ExportedImage:
    digest = source.digest or ""
    return ExportedImage(
        id=source.id,
        group=source.id,
        arm="original",
        position=source.position,
        source_name=source.file_name,
        label=source.ground_truth,
        image=digest,
        width=sizes[digest][0],
        height=sizes[digest][1],
        source_digest=digest,
        mask=source.mask_digest,
        boxes=_boxes(source),
        questions=_questions(source),
        predictions=predictions,
    )


def _counterfactual(
    source: SourceImage,
    row: Counterfactual,
    null_id: str | None,
    sizes: dict[str, tuple[int, int]],
    predictions: list[ExportedPrediction],
) -> ExportedImage:
    digest, is_edit = row.image_digest or "", row.arm == "edit"
    return ExportedImage(
        id=row.id,
        group=source.id,
        arm="counterfactual" if is_edit else "null_arm",
        position=source.position,
        source_name=source.file_name,
        label=source.ground_truth,
        image=digest,
        width=sizes[digest][0],
        height=sizes[digest][1],
        source_digest=source.digest or "",
        digital_source_type=digital_source_of(source.job, row.method),
        mask=source.mask_digest,
        boxes=_boxes(source, lost_objects(row.scores) or frozenset()),
        questions=_questions(source),
        method=row.method,
        ordinal=row.ordinal,
        null_id=null_id,
        seed=row.seed,
        factor=row.factor,
        from_value=row.from_value,
        to_value=row.to_value,
        changes=[ChangeView.model_validate(change) for change in row.changes],
        caption=row.caption,
        new_caption=row.new_caption,
        verdict=("accepted" if row.accepted else "rejected") if is_edit else None,
        check=row.check,
        reason=row.reason,
        scores=row.scores,
        lineage_digest=_digest(row.lineage) if row.lineage else "",
        predictions=predictions,
    )


def _boxes(source: SourceImage, lost: frozenset[int] = frozenset()) -> list[TrueBox] | None:
    if source.boxes is None:
        return None
    return [TrueBox.model_validate(box) for place, box in enumerate(source.boxes) if place not in lost]


def _questions(source: SourceImage) -> list[ImageQuestion] | None:
    return None if source.questions is None else list(map(ImageQuestion.model_validate, source.questions))


def _digest(lineage: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(lineage, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _predictions(session: Session, sources: Sequence[SourceImage]) -> dict[str, list[ExportedPrediction]]:
    """The predictions by image id, in the order of the models' names."""
    labelled = {source.id: source.ground_truth is not None for source in sources}
    rows = select(Prediction).where(Prediction.source_image_id.in_(labelled)).order_by(Prediction.model)
    predictions: dict[str, list[ExportedPrediction]] = defaultdict(list)
    for row in session.scalars(rows):
        probability, rank = truth_in(row, labelled[row.source_image_id])
        predictions[row.counterfactual_id or row.source_image_id].append(
            ExportedPrediction(
                model=row.model,
                predicted=row.predicted,
                probability=row.probability,
                ground_truth_probability=probability,
                rank=rank,
                flipped=row.flipped,
                detected=detected_in(row),
                answers=answers_in(row),
            )
        )
    return predictions
