"""From reviews to the report: which reviews are a random sample, and when they calibrate the job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from sqlalchemy import select

from gateway.database.sessions import Sessions
from gateway.database.tables import Counterfactual, Job, Report
from gateway.feedback.answers import store_answer
from gateway.feedback.reviews import load_reviews, next_up
from gateway.queue import job_states
from gateway.report.build import build_report
from shared.media.storage import DirectoryStore
from shared.schemas.base import JsonObject
from shared.schemas.results import JobResults
from shared.schemas.reviews import ReviewRequest
from tests.support.audited_judge import JUDGE, asks, audit_of
from tests.support.drawn_job import add_reported_job
from tests.support.work_site import Site


@pytest.fixture
def store(sessions: Sessions, tmp_path: Path) -> DirectoryStore:
    """Of a finished job `drawn` of 36 source images, with its report."""
    store = DirectoryStore(tmp_path / "objects")
    add_reported_job(sessions, store, per_class=14)
    return store


def edits(sessions: Sessions, accepted: bool) -> list[str]:
    """Rendered edits, in the order of the random sample."""
    c = Counterfactual
    rendered = select(c.id).where(c.arm == "edit", c.image_digest.is_not(None), c.accepted.is_(accepted))
    with sessions() as session:
        return sorted(session.scalars(rendered))


def review(
    sessions: Sessions, names: Iterable[str], verdict: str = "valid", reviewer: str = "ann", **columns: object
) -> None:
    with sessions.begin() as session:
        for name in names:
            content = ReviewRequest.model_validate({"verdict": verdict, **columns}).model_dump()
            store_answer(session, "drawn", "review", name, reviewer, content)


def test_too_few_reviews_say_how_many_more_it_takes(sessions: Sessions, store: DirectoryStore) -> None:
    sample = edits(sessions, accepted=True)
    review(sessions, sample[:5])
    review(sessions, [sample[5]], "unsure")
    review(sessions, sample[9:30])  # picked by the reviewer: not the random sample
    results = build_report(sessions, store, "drawn")
    (summary,) = results.reviews
    assert (summary.by_lot, summary.more, summary.accepted, summary.undecided) == (5, 15, 26, 1)
    assert (summary.valid, summary.flipped, results.calibration, results.provisional) == (None, [], None, True)
    assert all(effect.among_valid is None for result in results.results for effect in result.cells)
    page = store.get("reports/drawn/report.html").decode()
    assert "Review 15 more" in page
    assert "too few images" in page


def test_enough_reviews_calibrate_the_job(sessions: Sessions, store: DirectoryStore) -> None:
    before = build_report(sessions, store, "drawn")
    finding = before.results[0].findings[0]
    assert finding.provisional
    with sessions() as session:
        at_night = set(session.scalars(select(Counterfactual.id).where(Counterfactual.to_value == "night")))
    review(sessions, [name for name in edits(sessions, accepted=True) if name in at_night], edit_shown=True, realism=4)
    review(sessions, edits(sessions, accepted=True)[:40])
    review(sessions, edits(sessions, accepted=False)[:10], "invalid")
    results = build_report(sessions, store, "drawn")
    assert JobResults.model_validate(results.model_dump(mode="json")) == results
    assert results.calibration is not None
    assert (results.calibration.source, results.provisional) == ("reviews", False)
    (summary,) = results.reviews
    assert results.calibration.n == summary.accepted + summary.rejected >= 50
    assert summary.more == summary.more_rejected == 0
    assert 20 <= summary.by_lot < summary.accepted
    assert summary.valid is not None
    assert 0.85 < summary.valid.low <= summary.valid.value <= summary.valid.high <= 1
    assert summary.accepted_if_invalid is not None
    assert summary.accepted_if_invalid.high < 0.7
    assert {estimate.model for estimate in summary.flipped} == {"night-bus", "sound"}
    calibrated = results.results[0].findings[0]
    assert calibrated.cell == finding.cell
    assert calibrated.selected_interval == finding.selected_interval, "which cells are findings stays as it was"
    assert calibrated.among_valid is not None
    assert calibrated.among_valid.valid == 1, "all its pictures were looked at"
    assert not calibrated.provisional
    page = store.get("reports/drawn/report.html").decode()
    assert f"n = {summary.accepted + summary.rejected}" in page
    assert "uncalibrated" not in page


@pytest.mark.slow
def test_each_step_says_what_it_gets_right_and_what_it_makes_up(sessions: Sessions, store: DirectoryStore) -> None:
    first, second, *_ = edits(sessions, accepted=True)
    with sessions.begin() as session:
        kept = session.scalars(select(Counterfactual.id).where(Counterfactual.arm == "edit")).all()
        for name, check, phrase in ((first, "keyword in caption", ""), (second, "other class", "a car")):
            row = session.get_one(Counterfactual, name)
            row.accepted, row.image_digest, row.check, row.new_caption = False, None, check, ""
            row.changes = [{**row.changes[0], "to_phrase": phrase}]
    review(sessions, edits(sessions, accepted=True)[:30])
    (summary,) = build_report(sessions, store, "drawn").reviews
    steps = {figures.step: figures for figures in summary.steps}
    made_up = {step: (row.hallucinated.count, row.hallucinated.n) for step, row in steps.items() if row.hallucinated}
    n = len(kept)
    assert made_up == {"keywords": (1, n), "alternatives": (1, n - 1), "new captions": (0, n - 2)}
    assert (steps["captions"].valid.value, steps["images"].valid.count, steps["images"].valid.n) == (1, 30, 30)
    assert "What each step gets right" in store.get("reports/drawn/report.html").decode()


@pytest.mark.slow
def test_failure_modes_make_edits_invalid_and_are_counted(sessions: Sessions, store: DirectoryStore) -> None:
    sample = edits(sessions, accepted=True)[:30]
    review(sessions, sample[:3], failure="poor_image")
    review(sessions, sample[3:4], "invalid", failure="changed_label")
    review(sessions, sample[4:])
    (summary,) = build_report(sessions, store, "drawn").reviews
    counts = {failure.mode: (failure.share.count, failure.share.n) for failure in summary.failures}
    assert counts == {"poor_image": (3, 30), "changed_label": (1, 30)}, "the most frequent one first"
    assert summary.valid is not None
    assert summary.valid.value < 0.95, "the ground truth of these three is right, but they are no evidence"
    page = store.get("reports/drawn/report.html").decode()
    assert "Failure modes of accepted ones: poor image 10" in page


@pytest.mark.slow
def test_invalid_failures_take_a_finding_back(sessions: Sessions, store: DirectoryStore) -> None:
    with sessions() as session:
        listed = load_reviews(session, "drawn").prioritised
        at_night = set(session.scalars(select(Counterfactual.id).where(Counterfactual.to_value == "night")))
    assert not listed, "nothing is reviewed yet"
    review(sessions, edits(sessions, accepted=True)[:60])
    review(sessions, [name for name in edits(sessions, accepted=True) if name in at_night], "invalid")
    results = build_report(sessions, store, "drawn")
    finding = results.results[0].findings[0]
    assert (finding.cell.label, finding.cell.value) == ("bus", "night")
    assert finding.among_valid is not None
    assert finding.among_valid.valid == 0
    assert finding.provisional


def test_a_worker_rebuilds_the_report_and_nothing_else(site: Site) -> None:
    site.add_job("drawn", images=2, models=("m1",))
    worker = site.worker()
    while site.state("drawn") == "running":
        worker.step()
    site.small.calls.clear()
    edit = (edits(site.sessions, accepted=True) + edits(site.sessions, accepted=False))[0]
    review(site.sessions, [edit])
    with site.sessions.begin() as session:
        assert job_states.analyse_again(session, "drawn")
        assert not job_states.analyse_again(session, "drawn"), "it runs already"
    worker.step()
    assert site.state("drawn") == "done"
    assert not {"caption", "generate", "render", "predict"} & set(site.small.calls)
    with site.sessions() as session:
        (summary,) = JobResults.model_validate(session.get_one(Report, "drawn").metrics).reviews
    assert summary.accepted + summary.rejected == 1


def test_people_who_differ_leave_it_open_and_a_missing_edit_is_invalid(
    sessions: Sessions, store: DirectoryStore
) -> None:
    first, second, third = edits(sessions, accepted=True)[:3]
    review(sessions, [first, second], "valid")
    review(sessions, [first], "invalid", reviewer="ben")
    review(sessions, [second], "invalid", reviewer="ben")
    review(sessions, [second], "unsure", reviewer="carl")
    review(sessions, [second], "valid", reviewer="dora")
    review(sessions, [third], "valid", edit_shown=False)
    with sessions() as session:
        reviews = load_reviews(session, "drawn")
    assert [reviews.by_edit[name].valid for name in (first, second, third)] == [None, True, False]
    assert [reviews.is_sampled(name) for name in (first, second, third)] == [False, True, True]


@pytest.mark.slow
def test_the_failures_listed_first_are_no_lot(sessions: Sessions, store: DirectoryStore) -> None:
    listed = build_report(sessions, store, "drawn").review
    assert len(listed) > 3
    sample = edits(sessions, accepted=True)
    review(sessions, [listed[0], listed[1], listed[3], *sample[:30]])
    with sessions() as session:
        reviews = load_reviews(session, "drawn")
    assert set(listed[:2]) <= reviews.prioritised
    assert not any(reviews.is_sampled(name) for name in reviews.prioritised)
    assert all(reviews.is_sampled(name) for name in sample[:30] if name not in reviews.prioritised)


@pytest.mark.slow
def test_a_finding_offers_a_sample_of_its_failures_and_says_how_many_are_valid(
    sessions: Sessions, store: DirectoryStore
) -> None:
    before = build_report(sessions, store, "drawn")
    finding = before.results[0].findings[0]
    assert finding.changed is not None
    assert (finding.changed.reviewed, finding.changed.valid) == (0, 0)
    assert len(finding.changed.sample) == min(10, finding.changed.n)
    changed = [effect.changed.sample for figures in before.results for effect in figures.findings if effect.changed]
    assert set(before.review[: before.review_first]) == {name for sample in changed for name in sample}
    assert len(set(before.review)) == len(before.review) > before.review_first > 0
    first = before.review[: before.review_first]
    for name in first:
        with sessions() as session:
            following = next_up(session, session.get_one(Job, "drawn"), "ann").item
        assert following == name, "these come first"
        review(sessions, [name], "invalid" if name == finding.changed.sample[0] else "valid", arm_shown=True)
    with sessions() as session:
        assert next_up(session, session.get_one(Job, "drawn"), "ann").item not in first
    after = build_report(sessions, store, "drawn").results[0].findings[0]
    assert after.cell == finding.cell
    assert after.changed is not None
    assert (after.changed.n, after.changed.sample) == (finding.changed.n, finding.changed.sample)
    assert after.changed.reviewed >= len(finding.changed.sample)
    assert after.changed.valid == after.changed.reviewed - 1


@pytest.mark.slow
def test_a_judge_of_all_edits_narrows_the_valid_share(sessions: Sessions, store: DirectoryStore) -> None:
    sampled = edits(sessions, accepted=True)
    invalid = set(sampled[::3])
    review(sessions, [name for name in sampled[:36] if name not in invalid])
    review(sessions, [name for name in sampled[:36] if name in invalid], "invalid")
    (alone,) = build_report(sessions, store, "drawn").reviews
    assert alone.prediction_powered is None, "no judge"
    with sessions.begin() as session:
        for row in session.scalars(select(Counterfactual).where(Counterfactual.id.in_(sampled))):
            row.scores = {**row.scores, "validity": 0.1 if row.id in invalid else 0.9}
    (summary,) = build_report(sessions, store, "drawn").reviews
    assert summary.valid == alone.valid
    assert summary.prediction_powered is not None
    assert summary.valid is not None
    powered, plain = summary.prediction_powered, summary.valid
    assert powered.low <= 1 - len(invalid) / len(sampled) <= powered.high
    assert powered.high - powered.low < plain.high - plain.low


@pytest.mark.slow
def test_a_judge_enters_effects_with_an_audit_alone(sessions: Sessions, store: DirectoryStore) -> None:
    sampled = edits(sessions, accepted=True)
    invalid = set(sampled[::3])
    review(sessions, [name for name in sampled[:36] if name not in invalid])
    review(sessions, [name for name in sampled[:36] if name in invalid], "invalid")
    before = build_report(sessions, store, "drawn", [asks(JUDGE)])
    assert before.judge is None, "it was not asked"
    asked: JsonObject = {"questions": 4, "refused": 1, "unreadable": 0, "prompt_tokens": 90, "completion_tokens": 10}
    with sessions.begin() as session:
        for row in session.scalars(select(Counterfactual).where(Counterfactual.id.in_(sampled))):
            row.scores = {**row.scores, "judge_value": 0.1 if row.id in invalid else 0.9, "judge_rest": 0.0}
            row.lineage = {**row.lineage, "judge": asked}
    audit = audit_of(JUDGE, ["judge_value"])
    other = asks(JUDGE.model_copy(update={"revision": "8"}))
    for service, known in ((asks(JUDGE), None), (other, audit)):
        unaudited = build_report(sessions, store, "drawn", [service], audit=known)
        assert unaudited.results == before.results, "no effect moves"
        assert unaudited.reviews == before.reviews
        assert unaudited.judge is not None
        assert (unaudited.judge.audited, unaudited.judge.counting) == ("", [])
        assert "not audited" in store.get("reports/drawn/report.html").decode()
    audited = build_report(sessions, store, "drawn", [asks(JUDGE)], audit=audit)
    assert audited.judge is not None
    n = len(sampled)
    assert (audited.judge.questions, audited.judge.refused, audited.judge.prompt_tokens) == (4 * n, n, 90 * n)
    assert (audited.judge.audit, audited.judge.counting) == (audit.digest, ["judge_value"])
    assert audited.results != before.results
    (summary,) = audited.reviews
    assert summary.prediction_powered is not None
    assert summary.valid is not None
    powered, plain = summary.prediction_powered, summary.valid
    assert powered.high - powered.low < plain.high - plain.low
    assert JobResults.model_validate(audited.model_dump(mode="json")) == audited
