"""Counterfactual rows with all that belongs to them, as API, pages and report show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from gateway.analysis.segmentation import image_overlap
from gateway.database.tables import Counterfactual, Prediction, SourceImage
from shared.schemas.jobs import (
    ChangeView,
    ClassOverlap,
    ClassProbability,
    CounterfactualView,
    ModelOpinion,
    PredictionView,
    SegmentationView,
    SourceImageView,
    VerdictView,
)

_Shown = dict[tuple[str, str], PredictionView]  # by (model, id of the image that it saw)


def counterfactual_views(session: Session, rows: Sequence[Counterfactual]) -> list[CounterfactualView]:
    """Views of some edits of one job (at most a few hundred), in their order, with four queries in all."""
    sources = {
        source.id: source
        for source in session.scalars(
            select(SourceImage).where(SourceImage.id.in_({row.source_image_id for row in rows}))
        )
    }
    nulls = _null_arms(session, rows)
    said, flips = _predictions(session, rows, [null.id for null in nulls.values()])
    models = sorted({model for model, _ in said})
    views = []
    for row in rows:
        null = nulls.get((row.source_image_id, row.method, row.null_ordinal))
        opinions = [
            ModelOpinion(
                model=model,
                original=said.get((model, row.source_image_id)),
                null_arm=said.get((model, null.id)) if null else None,
                counterfactual=said.get((model, row.id)),
                flipped=flips.get((model, row.id)),
            )
            for model in models
            if (model, row.id) in said or (model, row.source_image_id) in said
        ]
        views.append(_view(row, sources[row.source_image_id], null, opinions))
    return views


def _view(
    row: Counterfactual, source: SourceImage, null: Counterfactual | None, opinions: list[ModelOpinion]
) -> CounterfactualView:
    return CounterfactualView(
        id=row.id,
        source=SourceImageView(
            id=source.id,
            position=source.position,
            name=source.file_name,
            ground_truth=source.ground_truth,
            image=source.digest or "",
            mask=source.mask_digest,
            mask_classes=source.mask_classes or [],
        ),
        method=row.method,
        ordinal=row.ordinal,
        seed=row.seed,
        changes=[ChangeView.model_validate(change) for change in row.changes],
        caption=row.caption,
        new_caption=row.new_caption,
        image=row.image_digest,
        null_image=null.image_digest if null else None,
        control_image=row.control_digest,
        verdict=VerdictView(accepted=row.accepted, check=row.check, reason=row.reason),
        scores=row.scores,
        predictions=opinions,
    )


def _null_arms(session: Session, rows: Sequence[Counterfactual]) -> dict[tuple[str, str, int | None], Counterfactual]:
    wanted = {(row.source_image_id, row.method, row.null_ordinal) for row in rows if row.null_ordinal is not None}
    if not wanted:
        return {}
    key = tuple_(Counterfactual.source_image_id, Counterfactual.method, Counterfactual.ordinal)
    found = session.scalars(select(Counterfactual).where(key.in_(wanted)))
    return {(null.source_image_id, null.method, null.ordinal): null for null in found}


def _predictions(
    session: Session, rows: Sequence[Counterfactual], null_ids: Iterable[str]
) -> tuple[_Shown, dict[tuple[str, str], bool | None]]:
    seen = [*(row.id for row in rows), *null_ids]
    originals = {row.source_image_id for row in rows}
    found = session.scalars(
        select(Prediction).where(
            Prediction.source_image_id.in_(originals),
            Prediction.counterfactual_id.is_(None) | Prediction.counterfactual_id.in_(seen),
        )
    )
    said: _Shown = {}
    flips = {}
    for row in found:
        key = (row.model, row.counterfactual_id or row.source_image_id)
        flips[key] = row.flipped
        said[key] = PredictionView(
            predicted=row.predicted,
            probability=row.probability,
            ground_truth_probability=row.ground_truth_probability,
            rank=row.rank,
            top=[ClassProbability(name=entry["class"], probability=entry["probability"]) for entry in row.top],
            segmentation=_segmentation(row),
        )
    return said, flips


def _segmentation(row: Prediction) -> SegmentationView | None:
    if row.map_digest is None:
        return None
    overlaps = row.overlaps or {}
    return SegmentationView(
        map=row.map_digest,
        mean_iou=image_overlap(overlaps),
        classes=[ClassOverlap(name=name, iou=iou) for name, iou in overlaps.items()],
    )
