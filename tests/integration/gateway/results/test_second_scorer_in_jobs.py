"""The effect under a second scorer: pairs that it accepts too, and pairs that it accepts alone."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Counterfactual, Prediction
from gateway.results.job_rows import load_rows
from gateway.results.measure import measure
from tests.support.predictions import ranked
from tests.support.worked_jobs import EDITS, add_worked_job

IMAGES, LOST, REFUSED = 20, 6, 4


def score_again(sessions: Sessions) -> None:
    """The model fails on the first images' edits, which the second scorer refuses; the first refuses the last ones."""
    with sessions.begin() as session:
        lost = [f"job-{position}" for position in range(LOST)]
        refused = [f"job-{position}" for position in range(IMAGES - REFUSED, IMAGES)]
        for row in session.scalars(select(Counterfactual)).all():
            of_lost = row.arm == "edit" and row.source_image_id in lost
            row.scores = {"second_accepted": 0.0 if of_lost else 1.0}
            row.accepted = row.arm != "edit" or row.source_image_id not in refused
        edits = select(Counterfactual.id).where(
            Counterfactual.arm == "edit", Counterfactual.source_image_id.in_([*lost, *refused])
        )
        session.execute(
            update(Prediction)
            .where(Prediction.counterfactual_id.in_(edits))
            .values(predicted="bus", **ranked("car", 2, 0.1))
        )


def test_effects_among_pairs_that_both_or_the_second_scorer_accept(sessions: Sessions) -> None:
    add_worked_job(sessions, "job", IMAGES)
    with reading(sessions) as session:
        (before,) = measure(load_rows(session, "job")).results
    assert {other.estimand for effect in before.cells for other in effect.others} == {"edits"}
    score_again(sessions)
    with reading(sessions) as session:
        (model,) = measure(load_rows(session, "job")).results
    assert len(model.cells) == EDITS + 1
    for effect in model.cells:
        others = {other.estimand: other for other in effect.others}
        assert effect.delta_accuracy == pytest.approx(-LOST / (IMAGES - REFUSED))
        assert (others["both"].sources, others["both"].delta_accuracy) == (IMAGES - REFUSED - LOST, 0.0)
        assert others["second"].sources == IMAGES - LOST
        assert others["second"].delta_accuracy == pytest.approx(-REFUSED / (IMAGES - LOST))
        assert others["second"].interval is not None
