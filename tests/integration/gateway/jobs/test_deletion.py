"""Deletion of large jobs: hidden at once, removed in portions beside other work, on SQLite and Postgres."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from gateway.database.events import add_event
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Event, Job, Prediction, SourceImage
from gateway.intake.sources import SourceFile
from gateway.jobs import jobs
from gateway.jobs.choices import Plan
from gateway.operations.deletion import IMAGES_PER_TRANSACTION, remove_rows
from gateway.queue import leases
from shared.problems import Conflict
from shared.schemas.jobs import JobSpec
from tests.support.rows import add_job
from tests.support.worked_jobs import add_worked_job

IMAGES = 2 * IMAGES_PER_TRANSACTION + 10


def delete(sessions: Sessions, job: str) -> None:
    with sessions.begin() as session:
        jobs.remove(session, LOCAL_OWNER, job)


def rows(sessions: Sessions, job: str) -> list[int]:
    with reading(sessions) as session:
        return [
            session.scalar(select(func.count()).where(table.job_id == job)) or 0
            for table in (SourceImage, Counterfactual, Prediction, Event)
        ]


def test_a_large_job_is_hidden_at_once_and_removed_in_portions_while_others_work(sessions: Sessions) -> None:
    add_worked_job(sessions, "large", IMAGES)
    add_job(sessions, "other", images=3)
    with sessions.begin() as session:
        add_event(session, "large", "job", {"state": "done"})
    delete(sessions, "large")
    with reading(sessions) as session:
        assert [job.id for job in jobs.listing(session, LOCAL_OWNER, None, 10).jobs] == ["other"]
    remaining = []

    def work(_: float) -> bool:
        """Between two transactions of the deletion, a worker leases an image of the other job."""
        remaining.append(rows(sessions, "large")[0])
        with sessions.begin() as session:
            assert leases.claim(session, 60) is not None
        return len(remaining) == 2

    remove_rows(sessions, work)
    assert remaining == [IMAGES - IMAGES_PER_TRANSACTION, IMAGES - 2 * IMAGES_PER_TRANSACTION], "it was told to stop"
    remove_rows(sessions, lambda _: False)
    assert rows(sessions, "large") == [0, 0, 0, 0]
    with reading(sessions) as session:
        assert session.get(Job, "large") is None
    assert rows(sessions, "other") == [3, 0, 0, 0]


def test_a_key_is_free_once_its_job_is_gone(sessions: Sessions) -> None:
    add_job(sessions, "other", images=0)
    order = jobs.Order(
        JobSpec(task_description="classify"),
        Plan([], [], ["car"]),
        "tiny",
        [SourceFile("a.png", "car", None, "no image")],
        "key",
    )
    with sessions.begin() as session:
        job, _ = jobs.create(session, LOCAL_OWNER, order)
    delete(sessions, job)
    with sessions.begin() as session, pytest.raises(Conflict, match="being deleted"):
        jobs.create(session, LOCAL_OWNER, order)
    remove_rows(sessions, lambda _: False)
    with sessions.begin() as session:
        assert jobs.create(session, LOCAL_OWNER, order) == (job, True)


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_two_workers_do_not_wait_for_each_other(sessions: Sessions) -> None:
    add_job(sessions, "large", images=3)
    delete(sessions, "large")
    with sessions.begin() as session:
        assert session.scalar(select(Job.id).where(Job.id == "large").with_for_update()) == "large"
        remove_rows(sessions, lambda _: False)  # returns, although somebody else holds the job
    assert rows(sessions, "large")[0] == 3
