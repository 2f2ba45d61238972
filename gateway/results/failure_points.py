"""Pages of failure points: per image, the severity at which each corruption first changes a model's prediction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, load_only

from gateway.analysis.failure_points import corruption_of, first_change
from gateway.database.pagination import page_of
from gateway.database.tables import Counterfactual, Prediction, SourceImage
from gateway.jobs import jobs
from gateway.methods import METHODS
from gateway.results.pairing import triples
from shared.schemas.results import FailurePointsPage, FailurePointView, ImageFailurePoints

ALL_DETECTED = "the classes found on the original"
SOME_LOST = "a class is lost"
GRADED = [name for name, spec in METHODS.items() if spec.severities]


def failure_points_page(session: Session, owner: str, job_id: str, cursor: str | None, limit: int) -> FailurePointsPage:
    """Failure points of `limit` source images that method `corruptions` has processed, by position. Raises NotFound."""
    jobs.find(session, owner, job_id)
    corrupted = select(Counterfactual.id).where(
        Counterfactual.source_image_id == SourceImage.id, Counterfactual.method.in_(GRADED)
    )
    query = select(SourceImage).where(SourceImage.job_id == job_id, corrupted.exists())
    rows, next_cursor = page_of(session, query, {SourceImage.position: int}, cursor, limit)
    points = _points(session, [row.id for row in rows])
    return FailurePointsPage(
        images=[
            ImageFailurePoints(
                position=row.position, name=row.file_name, ground_truth=row.ground_truth, points=points[row.id]
            )
            for row in rows
        ],
        next=next_cursor,
    )


def _points(session: Session, sources: Sequence[str]) -> dict[str, list[FailurePointView]]:
    """By source image: for each model and corruption, the severity that first changes the null arm's prediction."""
    c = Counterfactual
    corrupted = select(c).where(c.source_image_id.in_(sources), c.method.in_(GRADED)).order_by(c.ordinal)
    columns = load_only(c.source_image_id, c.method, c.ordinal, c.arm, c.null_ordinal, c.sham_ordinal, c.to_value)
    pairs = list(triples(session.scalars(corrupted.options(columns))))
    points: dict[str, list[FailurePointView]] = defaultdict(list)
    for model, predictions in _predictions(session, sources).items():
        null_predictions: dict[str, str] = {}
        corrupted_predictions: dict[str, dict[str, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
        for triple in pairs:
            compared, value = triple.predictions(predictions), triple.edit.to_value
            if compared.null is None or compared.counterfactual is None or value is None:
                continue
            corruption, severity = corruption_of(value)
            null_predictions[triple.original] = compared.null
            corrupted_predictions[triple.original][corruption][severity] = compared.counterfactual
        for source, corruptions in corrupted_predictions.items():
            before = null_predictions[source]
            points[source] += [
                FailurePointView(
                    model=model, corruption=corruption, unchanged=before, severity=first_change(before, by_severity)
                )
                for corruption, by_severity in corruptions.items()
            ]
    return points


def _predictions(session: Session, sources: Sequence[str]) -> dict[str, dict[str, str]]:
    """By model and corrupted image: the predicted class; for a segmenter, whether it detects all classes."""
    c, p = Counterfactual, Prediction
    rows = session.execute(
        select(p.model, c.id, p.predicted, p.image_digest, p.flipped)
        .join(c, p.counterfactual_id == c.id)
        .where(c.source_image_id.in_(sources), c.method.in_(GRADED))
        .order_by(p.model)
    )
    predictions: dict[str, dict[str, str]] = defaultdict(dict)
    for model, image, predicted, label_map, flipped in rows:
        if label_map is None:
            predictions[model][image] = predicted
        else:  # for segmenters, losing a class counts, not a change of the largest class
            predictions[model][image] = SOME_LOST if flipped else ALL_DETECTED
    return predictions
