"""Which pairs count: the same everywhere (figures, funnel, suites, repairs, exports), and rows from before checks."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select, update

from gateway.database.sessions import Sessions, reading
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Prediction, SourceImage
from gateway.export.selection import Selection, exported_images
from gateway.repairs.orders import load
from gateway.results.job_rows import load_rows
from gateway.results.measure import measure
from gateway.results.pairing import triples
from gateway.results.stream import stream_sources
from gateway.suites import suites
from shared.schemas.suites import SuiteRequest
from tests.support.predictions import ranked
from tests.support.worked_jobs import EDITS, add_worked_job

IMAGES = 16
SHAM = EDITS + 1
LOST = 4  # images whose null arm lost the class, in the tests that say so


def lose_null_arms(sessions: Sessions) -> None:
    """The null arms of the first images fail the label check, and the model is wrong on them; the others pass."""
    names = [f"job-{position}" for position in range(LOST)]
    with sessions.begin() as session:
        session.execute(update(Counterfactual).where(Counterfactual.arm == "edit").values(null_check=""))
        of_lost = Counterfactual.source_image_id.in_(names)
        session.execute(update(Counterfactual).where(Counterfactual.arm == "edit", of_lost).values(null_check="label"))
        nulls = [f"{name}-{EDITS}" for name in names]
        wrong = update(Prediction).where(Prediction.counterfactual_id.in_(nulls))
        session.execute(wrong.values(predicted="bus", **ranked("car", 2, 0.1)))


def add_sham_arms(sessions: Sessions, failing: int) -> None:
    """A sham arm for each image; those of the first `failing` images fail the structure check. The model is right."""
    with sessions.begin() as session:
        for null in session.scalars(select(Counterfactual).where(Counterfactual.arm == "null")).all():
            columns = {column.name: getattr(null, column.name) for column in Counterfactual.__table__.columns}
            name = f"{null.source_image_id}-{SHAM}"
            session.execute(insert(Counterfactual).values({**columns, "id": name, "arm": "sham", "ordinal": SHAM}))
            query = select(Prediction).where(Prediction.counterfactual_id == f"{null.source_image_id}-0")
            right = session.scalars(query).one()
            columns = {column.name: getattr(right, column.name) for column in Prediction.__table__.columns}
            named = {"id": f"{name}-prediction", "counterfactual_id": name, **ranked("car", 1, 0.7)}
            session.execute(insert(Prediction).values({**columns, **named}))
        edits = update(Counterfactual).where(Counterfactual.arm == "edit")
        session.execute(edits.values(sham_ordinal=SHAM, sham_check=""))
        failed = [f"job-{position}" for position in range(failing)]
        session.execute(edits.where(Counterfactual.source_image_id.in_(failed)).values(sham_check="structure"))


def test_rows_from_before_null_arms_were_checked_count_by_the_edit_alone(sessions: Sessions) -> None:
    add_worked_job(sessions, "job", IMAGES)
    with reading(sessions) as session:
        rows = load_rows(session, "job")
    results = measure(rows)
    (model,), (funnel,) = results.results, results.funnels
    assert (model.sources, model.counterfactuals, model.reference) == (IMAGES, IMAGES * EDITS, "null")
    assert (funnel.lost_to_arm, funnel.counted) == ([], funnel.accepted)
    assert all(effect.others[0].delta_accuracy == effect.delta_accuracy for effect in model.cells)


def test_pairs_whose_null_arm_fails_leave_the_main_estimate_and_stay_in_the_other(sessions: Sessions) -> None:
    add_worked_job(sessions, "job", IMAGES)
    lose_null_arms(sessions)
    with reading(sessions) as session:
        results = measure(load_rows(session, "job"))
    (model,), (funnel,) = results.results, results.funnels
    assert (model.sources, model.counterfactuals) == (IMAGES - LOST, (IMAGES - LOST) * EDITS)
    assert funnel.accepted.count == IMAGES * EDITS
    assert funnel.counted is not None
    assert funnel.counted.count == (IMAGES - LOST) * EDITS
    assert [(lost.check, lost.count) for lost in funnel.lost_to_arm] == [("label", LOST * EDITS)]
    for effect in model.cells:
        assert (effect.sources, effect.delta_accuracy) == (IMAGES - LOST, 0.0)
        (edits,) = effect.others
        assert (edits.estimand, edits.sources) == ("edits", IMAGES)
        assert edits.delta_accuracy == pytest.approx(LOST / IMAGES), "a true zero looked like an improvement"
        assert edits.interval is not None
        assert effect.bounds is not None
        assert effect.bounds.lost == LOST * (1 if effect.cell.direction == "to" else EDITS)
        assert (effect.bounds.refused, effect.bounds.lost_share, effect.bounds.low) == (0, 1.0, 0.0)
        assert effect.bounds.high == pytest.approx(edits.delta_accuracy), "what the lost pairs show may be true"


def test_with_sham_arms_effects_are_measured_against_them_and_both_are_reported(sessions: Sessions) -> None:
    add_worked_job(sessions, "job", IMAGES)
    lose_null_arms(sessions)
    add_sham_arms(sessions, failing=1)
    with reading(sessions) as session:
        rows = load_rows(session, "job")
    (model,), (funnel,) = measure(rows).results, measure(rows).funnels
    assert (model.reference, model.sources) == ("sham", IMAGES - 1)
    assert [(lost.check, lost.count) for lost in funnel.lost_to_arm] == [("structure", EDITS)]
    for effect in model.cells:
        assert effect.delta_probability == pytest.approx(0.1)
        others = {other.estimand: other for other in effect.others}
        assert {name: other.sources for name, other in others.items()} == {"edits": IMAGES, "null": IMAGES - LOST}
        assert others["null"].delta_probability == pytest.approx(0.0)


def test_a_sham_arm_without_image_takes_its_pair_out_and_is_not_replaced_by_the_null_arm(sessions: Sessions) -> None:
    add_worked_job(sessions, "job", IMAGES)
    add_sham_arms(sessions, failing=0)
    with sessions.begin() as session:
        without = update(Counterfactual).where(Counterfactual.source_image_id == "job-0", Counterfactual.arm == "edit")
        session.execute(without.values(sham_ordinal=None, sham_check="not finite"))
    with reading(sessions) as session:
        (model,) = measure(load_rows(session, "job")).results
    for effect in model.cells:
        assert effect.sources == IMAGES - 1
        assert [(other.estimand, other.sources) for other in effect.others] == [("edits", IMAGES - 1), ("null", IMAGES)]


@pytest.mark.parametrize("shams", [False, True])
def test_everything_that_uses_pairs_uses_the_same_ones(sessions: Sessions, shams: bool) -> None:
    add_worked_job(sessions, "job", IMAGES)
    lose_null_arms(sessions)
    if shams:
        add_sham_arms(sessions, failing=2)
    expected = {f"job-{position}" for position in range(2 if shams else LOST, IMAGES)}
    with reading(sessions) as session:
        streamed = stream_sources(session, "job")
        by_rows = {t.original for rows in streamed for t in triples(rows.counterfactuals) if t.edit.counted}
        by_sql = set(session.scalars(select(Counterfactual.source_image_id).where(Counterfactual.counted)))
        _, images = load(session, "job")
    exported = [image for image in exported_images(sessions, "job", Selection()) if image.arm != "original"]
    arms = {True: [image for image in images if image.null], False: [image for image in images if not image.null]}
    assert by_rows == expected
    assert by_sql - {f"job-{position}" for position in range(IMAGES)} == set()
    assert (len(arms[False]), len(arms[True])) == (len(expected) * EDITS, len(expected))
    assert {image.group for image in exported} == expected
    with sessions.begin() as session:
        suite = suites.create(session, LOCAL_OWNER, SuiteRequest.model_validate({"name": "s", "job": "job"}))
    with reading(sessions) as session:
        stored_arms = session.scalars(select(Counterfactual.arm).where(Counterfactual.job_id == suite)).all()
        sources = session.scalars(select(SourceImage.id).where(SourceImage.job_id == suite)).all()
    assert len(sources) == len(expected)
    counts = {arm: list(stored_arms).count(arm) for arm in ("edit", "null", "sham")}
    assert counts == {"edit": len(expected) * EDITS, "null": len(expected), "sham": len(expected) * shams}
