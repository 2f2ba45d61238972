"""The report counts edits of people by characteristic, with their reviews."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select

from gateway.database.sessions import Sessions
from gateway.database.tables import LOCAL_OWNER, Counterfactual
from gateway.feedback.reviews import record
from gateway.methods.people import CHECK
from gateway.report.build import build_report
from shared.media.storage import DirectoryStore
from shared.schemas.reviews import ReviewRequest
from tests.support.drawn_job import add_drawn_job


def test_edits_of_people_are_counted_by_characteristic(sessions: Sessions, tmp_path: Path) -> None:
    store, c = DirectoryStore(tmp_path), Counterfactual
    add_drawn_job(sessions, store, per_class=2)
    with sessions.begin() as session:
        edits = session.scalars(select(c).where(c.arm == "edit").order_by(c.accepted.desc(), c.id)).all()
        for edit, people in zip(edits, ["age", "age, gender"], strict=False):
            edit.lineage = {**edit.lineage, "people": people}
        refused = edits[-1]
        refused.lineage, refused.check = {**refused.lineage, "people": "gender"}, CHECK
        reviewed = edits[0].id
    with sessions.begin() as session:
        record(session, LOCAL_OWNER, "anna", "drawn", reviewed, ReviewRequest(verdict="invalid"))
    results = build_report(sessions, store, "drawn")
    rows = [(row.characteristic, row.refused, row.accepted.count, row.accepted.n) for row in results.people]
    assert rows == [("age", 0, 2, 2), ("gender", 1, 1, 2)]
    assert [(row.valid.count, row.valid.n) for row in results.people if row.valid] == [(0, 1)]
    assert "Edits of protected characteristics of people" in store.get("reports/drawn/report.html").decode()
