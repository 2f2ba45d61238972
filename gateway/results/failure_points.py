"""Pages of failure points: image by image, the severity at which each corruption first changes a model's answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.failure_points import corruption_of, first_change
from gateway.database.pagination import decode_cursor, encode_cursor
from gateway.database.tables import Counterfactual, Prediction, SourceImage
from gateway.jobs import jobs
from shared.schemas.jobs import FailurePointsPage, FailurePointView, ImageFailurePoints

ALL_FOUND = "the classes found on the original"
SOME_LOST = "a class is lost"


def failure_points_page(session: Session, owner: str, job_id: str, cursor: str | None, limit: int) -> FailurePointsPage:
    """Failure points of `limit` source images that method `corruptions` is done with, by position. Raises NotFound."""
    jobs.find(session, owner, job_id)
    corrupted = select(Counterfactual.id).where(
        Counterfactual.source_image_id == SourceImage.id, Counterfactual.method == "corruptions"
    )
    query = (
        select(SourceImage)
        .where(SourceImage.job_id == job_id, corrupted.exists())
        .order_by(SourceImage.position)
        .limit(limit + 1)
    )
    if cursor is not None:
        (position,) = decode_cursor(cursor, (int,))
        query = query.where(SourceImage.position > position)
    rows = session.scalars(query).all()
    points = _points(session, [row.id for row in rows[:limit]])
    return FailurePointsPage(
        images=[
            ImageFailurePoints(
                position=row.position, name=row.file_name, ground_truth=row.ground_truth, points=points[row.id]
            )
            for row in rows[:limit]
        ],
        next=encode_cursor((rows[limit - 1].position,)) if len(rows) > limit else None,
    )


def _points(session: Session, sources: Sequence[str]) -> dict[str, list[FailurePointView]]:
    """By source image: of each model and way, where its answer to the null arm first changes."""
    c, p = Counterfactual, Prediction
    rows = session.execute(
        select(c.source_image_id, p.model, c.arm, c.to_value, p.predicted, p.map_digest, p.flipped)
        .join(p, p.counterfactual_id == c.id)
        .where(c.source_image_id.in_(sources), c.method == "corruptions")
        .order_by(p.model, c.ordinal)
    )
    unchanged: dict[tuple[str, str], str] = {}
    predictions: dict[tuple[str, str], dict[str, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    for source, model, arm, value, predicted, label_map, lost in rows:
        if label_map is not None:  # of a segmenter it counts what it finds, not which class is the largest
            predicted = SOME_LOST if lost else ALL_FOUND
        if arm == "null":
            unchanged[source, model] = predicted
        elif value is not None:
            way, severity = corruption_of(value)
            predictions[source, model][way][severity] = predicted
    points: dict[str, list[FailurePointView]] = defaultdict(list)
    for (source, model), ways in predictions.items():
        before = unchanged[source, model]
        points[source] += [
            FailurePointView(model=model, corruption=way, unchanged=before, severity=first_change(before, answers))
            for way, answers in ways.items()
        ]
    return points
