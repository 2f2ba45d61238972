"""The later jobs on a job's findings."""

from __future__ import annotations

from datetime import UTC, datetime

from gateway.database.sessions import Sessions
from gateway.database.tables import Job, Report
from gateway.report.build import store_report
from gateway.results.confirmation import load_follow_ups
from tests.support.databases import ON_SQLITE
from tests.support.figures import job_results, results
from tests.support.rows import add_job

NAMES = ("kept", "deleted", "dosed", "other")


@ON_SQLITE
def test_a_deleted_job_confirms_nothing_and_gives_no_curve(sessions: Sessions) -> None:
    add_job(sessions, "first", 0)
    for minute, name in enumerate(NAMES):
        of = "other" if name == "other" else "first"
        add_job(sessions, name, 0, minute=minute, purpose="doses" if name == "dosed" else "confirmation", parent_id=of)
    with sessions.begin() as session:
        for name in NAMES:
            figures = job_results(results("shifts"))
            made = figures.made.model_copy(update={"job": name})
            store_report(session, name, name, figures.model_copy(update={"made": made}))
        session.get_one(Job, "deleted").deleted_at = datetime(2026, 1, 2, tzinfo=UTC)
    with sessions() as session:
        assert session.get(Report, "deleted") is not None, "its rows are removed later"
        job = session.get_one(Job, "first")
        assert [found.made.job for found in load_follow_ups(session, job, "confirmation")] == ["kept"]
        assert [found.made.job for found in load_follow_ups(session, job, "doses")] == ["dosed"]
