"""Views of counterfactuals with their images, verdict and predictions, as API, pages and report show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.tables import Counterfactual, Image, Job, Prediction, SourceImage
from gateway.results.pairing import Triple, load_triples
from shared.schemas.base import JsonObject, Kind
from shared.schemas.boxes import Detected
from shared.schemas.questions import AnsweredQuestion
from shared.schemas.results import (
    ChangeView,
    ClassProbability,
    CounterfactualView,
    ModelOpinion,
    PredictionView,
    SourceImageView,
    VerdictView,
)

_ByModel = dict[str, dict[str, Prediction]]  # by model and image id


def counterfactual_views(session: Session, rows: Sequence[Counterfactual]) -> list[CounterfactualView]:
    """Views of up to a few hundred edits of one job, in their order, with six queries."""
    if not rows:
        return []
    sources = {
        source.id: source
        for source in session.scalars(
            select(SourceImage).where(SourceImage.id.in_({row.source_image_id for row in rows}))
        )
    }
    triples = load_triples(session, rows)
    by_model = _predictions(session, triples)
    kind = session.get_one(Job, rows[0].job_id).kind
    digests = {source.digest for source in sources.values()}
    measured = select(Image.digest, Image.width, Image.height).where(Image.digest.in_(digests))
    sizes = {digest: (width, height) for digest, width, height in session.execute(measured)}
    return [
        _view(triple, source, sizes.get(source.digest or "", (0, 0)), by_model, kind)
        for triple in triples
        for source in [sources[triple.original]]
    ]


def _opinions(triple: Triple[Counterfactual], labelled: bool, by_model: _ByModel) -> list[ModelOpinion]:
    """The predictions of each model for the three images."""
    opinions = []
    for model, predictions in sorted(by_model.items()):
        original, null, image, sham = triple.predictions(predictions)
        if original is not None or image is not None:
            opinions.append(
                ModelOpinion(
                    model=model,
                    original=original and _prediction(original, labelled),
                    null_arm=_prediction(null, labelled) if null and triple.null else None,
                    sham_arm=_prediction(sham, labelled) if sham and triple.sham else None,
                    counterfactual=image and _prediction(image, labelled),
                    flipped=image and image.flipped,
                )
            )
    return opinions


def _view(
    triple: Triple[Counterfactual], source: SourceImage, size: tuple[int, int], by_model: _ByModel, kind: Kind
) -> CounterfactualView:
    row, (width, height) = triple.edit, size
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
            width=width,
            height=height,
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
        kind=kind,
        predictions=_opinions(triple, source.ground_truth is not None, by_model),
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


def _prediction(row: Prediction, labelled: bool) -> PredictionView:
    probability, rank = truth_in(row, labelled)
    return PredictionView(
        predicted=row.predicted,
        probability=row.probability,
        ground_truth_probability=probability,
        rank=rank,
        top=[ClassProbability.model_validate(entry) for entry in cast("list[JsonObject]", row.detail["top"])],
        scores=row.scores,
        map=row.image_digest,
        detected=detected_in(row),
        answers=answers_in(row),
    )


def truth_in(row: Prediction, labelled: bool) -> tuple[float | None, int | None]:
    """Probability and rank of the ground truth; None where the source image has no label."""
    if not labelled:
        return None, None
    return cast("float | None", row.detail.get("truth_probability")), cast("int | None", row.detail.get("rank"))


def detected_in(row: Prediction) -> Detected | None:
    """What became of each object of the ground truth; None of models that are no detectors, and without boxes."""
    return Detected.model_validate(row.detail["detected"]) if row.detail.get("detected") else None


def answers_in(row: Prediction) -> list[AnsweredQuestion] | None:
    """What a model answers to the questions about an image; None of models that are asked none."""
    answers = cast("list[JsonObject] | None", row.detail.get("answers"))
    return None if answers is None else list(map(AnsweredQuestion.model_validate, answers))
