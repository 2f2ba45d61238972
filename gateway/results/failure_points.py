"""Pages of failure points: image by image, the severity at which each corruption first changes a model's answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, load_only

from gateway.analysis.failure_points import corruption_of, first_change
from gateway.database.pagination import page_of
from gateway.database.tables import Counterfactual, Prediction, SourceImage
from gateway.jobs import jobs
from gateway.results.stream import triples
from shared.schemas.jobs import FailurePointsPage, FailurePointView, ImageFailurePoints

ALL_FOUND = "the classes found on the original"
SOME_LOST = "a class is lost"


def failure_points_page(session: Session, owner: str, job_id: str, cursor: str | None, limit: int) -> FailurePointsPage:
    """Failure points of `limit` source images that method `corruptions` is done with, by position. Raises NotFound."""
    jobs.find(session, owner, job_id)
    corrupted = select(Counterfactual.id).where(
        Counterfactual.source_image_id == SourceImage.id, Counterfactual.method == "corruptions"
    )
    query = select(SourceImage).where(SourceImage.job_id == job_id, corrupted.exists())
    rows, following = page_of(session, query, {SourceImage.position: int}, cursor, limit)
    points = _points(session, [row.id for row in rows])
    return FailurePointsPage(
        images=[
            ImageFailurePoints(
                position=row.position, name=row.file_name, ground_truth=row.ground_truth, points=points[row.id]
            )
            for row in rows
        ],
        next=following,
    )


def _points(session: Session, sources: Sequence[str]) -> dict[str, list[FailurePointView]]:
    """By source image: of each model and corruption, the severity at which its answer to the null arm first changes."""
    c = Counterfactual
    corrupted = select(c).where(c.source_image_id.in_(sources), c.method == "corruptions").order_by(c.ordinal)
    columns = load_only(c.source_image_id, c.method, c.ordinal, c.arm, c.null_ordinal, c.sham_ordinal, c.to_value)
    pairs = list(triples(session.scalars(corrupted.options(columns))))
    points: dict[str, list[FailurePointView]] = defaultdict(list)
    for model, answers in _answers(session, sources).items():
        unchanged: dict[str, str] = {}
        changed: dict[str, dict[str, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
        for triple in pairs:
            compared, value = triple.predictions(answers), triple.edit.to_value
            if compared.null is None or compared.counterfactual is None or value is None:
                continue
            corruption, severity = corruption_of(value)
            unchanged[triple.original] = compared.null
            changed[triple.original][corruption][severity] = compared.counterfactual
        for source, corruptions in changed.items():
            before = unchanged[source]
            points[source] += [
                FailurePointView(
                    model=model, corruption=corruption, unchanged=before, severity=first_change(before, by_severity)
                )
                for corruption, by_severity in corruptions.items()
            ]
    return points


def _answers(session: Session, sources: Sequence[str]) -> dict[str, dict[str, str]]:
    """By model, in their order: its answer to each corrupted image; of a segmenter, whether it finds all classes."""
    c, p = Counterfactual, Prediction
    rows = session.execute(
        select(p.model, c.id, p.predicted, p.map_digest, p.flipped)
        .join(c, p.counterfactual_id == c.id)
        .where(c.source_image_id.in_(sources), c.method == "corruptions")
        .order_by(p.model)
    )
    answers: dict[str, dict[str, str]] = defaultdict(dict)
    for model, image, predicted, label_map, lost in rows:
        if label_map is None:
            answers[model][image] = predicted
        else:  # of a segmenter it counts what it finds, not which class is the largest
            answers[model][image] = SOME_LOST if lost else ALL_FOUND
    return answers
