"""What classifiers predict, in rows that tests write themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.tables import Prediction


def ranked(truth: str | None, rank: int, probability: float, top: Sequence[tuple[str, float]] = ()) -> dict[str, Any]:
    """`scores` and `detail` of a prediction in which the truth has this rank and probability."""
    shares = [{"name": name, "probability": share} for name, share in top]
    return {
        "scores": {} if truth is None else {truth: float(rank == 1)},
        "detail": {"rank": rank, "truth_probability": probability, "top": shares},
    }


def confusion_of(prediction: Prediction) -> list[int]:
    """The packed confusion counts of a segmenter's prediction; empty without a mask."""
    return cast("list[int]", prediction.detail["confusion"] or [])


def forget_truths(session: Session, job: str) -> None:
    """Score all predictions as in a job without ground truth: by the class that the model says for the original."""
    predictions = session.scalars(select(Prediction).where(Prediction.job_id == job)).all()
    said = {(row.source_image_id, row.model): row.predicted for row in predictions if row.counterfactual_id is None}
    for row in predictions:
        truth, top = said[row.source_image_id, row.model], row.detail["top"]
        assert isinstance(top, list)
        shares = [(str(entry["name"]), float(str(entry["probability"]))) for entry in top if isinstance(entry, dict)]
        names = [name for name, _ in shares]
        rank = 1 + names.index(truth) if truth in names else 1 + len(names)
        columns = ranked(truth, 1 if row.predicted == truth else max(2, rank), dict(shares).get(truth, 0.0), shares)
        row.scores, row.detail = columns["scores"], columns["detail"]
