"""Views of counterfactuals with their images, verdict and predictions, as API, pages and report show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.segmentation import image_overlap
from gateway.database.tables import Counterfactual, Prediction, SourceImage
from gateway.results.pairing import Triple, load_triples
from shared.schemas.result_rows import (
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

_ByModel = dict[str, dict[str, Prediction]]  # by model and image id


def counterfactual_views(session: Session, rows: Sequence[Counterfactual]) -> list[CounterfactualView]:
    """Views of up to a few hundred edits of one job, in their order, with four queries."""
    sources = {
        source.id: source
        for source in session.scalars(
            select(SourceImage).where(SourceImage.id.in_({row.source_image_id for row in rows}))
        )
    }
    triples = load_triples(session, rows)
    by_model = _predictions(session, triples)
    return [_view(triple, sources[triple.original], _opinions(triple, by_model)) for triple in triples]


def _opinions(triple: Triple[Counterfactual], by_model: _ByModel) -> list[ModelOpinion]:
    """The predictions of each model for the three images."""
    opinions = []
    for model, predictions in sorted(by_model.items()):
        original, null, image, sham = triple.predictions(predictions)
        if original is not None or image is not None:
            opinions.append(
                ModelOpinion(
                    model=model,
                    original=original and _prediction(original),
                    null_arm=_prediction(null) if null and triple.null else None,
                    sham_arm=_prediction(sham) if sham and triple.sham else None,
                    counterfactual=image and _prediction(image),
                    flipped=image and image.flipped,
                )
            )
    return opinions


def _view(triple: Triple[Counterfactual], source: SourceImage, opinions: list[ModelOpinion]) -> CounterfactualView:
    row = triple.edit
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
        null_image=triple.null.image_digest if triple.null else None,
        null_check=row.null_check,
        sham_image=triple.sham.image_digest if triple.sham else None,
        sham_caption=triple.sham.new_caption if triple.sham else "",
        sham_check=row.sham_check,
        counted=row.counted,
        control_image=row.control_digest,
        verdict=VerdictView(accepted=row.accepted, check=row.check, reason=row.reason),
        scores=row.scores,
        predictions=opinions,
    )


def _predictions(session: Session, triples: Sequence[Triple[Counterfactual]]) -> _ByModel:
    ids = [row.id for triple in triples for row in (triple.edit, triple.null, triple.sham) if row is not None]
    predictions = session.scalars(
        select(Prediction).where(
            Prediction.source_image_id.in_({triple.original for triple in triples}),
            Prediction.counterfactual_id.is_(None) | Prediction.counterfactual_id.in_(ids),
        )
    )
    by_model: _ByModel = defaultdict(dict)
    for row in predictions:
        by_model[row.model][row.counterfactual_id or row.source_image_id] = row
    return by_model


def _prediction(row: Prediction) -> PredictionView:
    return PredictionView(
        predicted=row.predicted,
        probability=row.probability,
        ground_truth_probability=row.ground_truth_probability,
        rank=row.rank,
        top=[ClassProbability(name=entry["class"], probability=entry["probability"]) for entry in row.top],
        segmentation=_segmentation(row),
    )


def _segmentation(row: Prediction) -> SegmentationView | None:
    if row.map_digest is None:
        return None
    overlaps = row.overlaps or {}
    return SegmentationView(
        map=row.map_digest,
        mean_iou=image_overlap(overlaps),
        classes=[ClassOverlap(name=name, iou=iou) for name, iou in overlaps.items()],
    )
