"""The report says what each step of a method gets right and makes up, once people have reviewed its images."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select

from gateway.database.sessions import Sessions
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Job
from gateway.feedback.reviews import record
from gateway.methods import read_method
from gateway.report.build import build_report
from shared.media.storage import DirectoryStore
from shared.schemas.results import StepFigures
from shared.schemas.reviews import ReviewRequest
from tests.support.drawn_job import add_drawn_job


def steps(sessions: Sessions, store: DirectoryStore) -> dict[str, StepFigures]:
    """The steps of the job's one method, after the verdict that its first edit is invalid."""
    c = Counterfactual
    with sessions.begin() as session:
        first = session.scalars(select(c.id).where(c.arm == "edit", c.accepted).order_by(c.id)).first()
        record(session, LOCAL_OWNER, "anna", "drawn", str(first), ReviewRequest(verdict="invalid"))
    (reviews,) = build_report(sessions, store, "drawn").reviews
    return {row.step: row for row in reviews.steps}


def test_each_step_has_what_it_gets_right_and_makes_up(sessions: Sessions, tmp_path: Path) -> None:
    store, c = DirectoryStore(tmp_path), Counterfactual
    add_drawn_job(sessions, store, per_class=2)
    with sessions.begin() as session:
        edits = session.scalars(select(c).where(c.arm == "edit").order_by(c.position)).all()
        refused = [edit for edit in edits if edit.image_digest is None]
        refused[0].check = "other class"
        for edit in edits:
            if edit.position == 0:
                edit.caption = "A thing on a road."
        proposed = len(edits)
    figures = steps(sessions, store)
    assert list(figures) == ["captions", "keywords", "alternatives", "new captions", "images"]
    valid = {name: (row.valid.count, row.valid.n) for name, row in figures.items()}
    assert valid["captions"] == (5, 6)
    assert valid["keywords"] == valid["alternatives"] == (proposed, proposed)
    assert valid["new captions"] == (proposed - 6, proposed)
    assert valid["images"] == (0, 1)
    assert [row.hallucinated.count for row in figures.values() if row.hallucinated] == [0, 0, 1]


def test_a_caption_is_not_judged_by_a_label_that_the_method_puts_into_it(sessions: Sessions, tmp_path: Path) -> None:
    """LANCE's captions once named all labels: those that lack theirs are begun with it."""
    store = DirectoryStore(tmp_path)
    add_drawn_job(sessions, store, per_class=1)
    with sessions.begin() as session:
        session.get_one(Job, "drawn").methods = [read_method("lance", {})]
        for row in session.scalars(select(Counterfactual)):
            row.method = "lance"
    assert list(steps(sessions, store)) == ["new captions", "images"]
