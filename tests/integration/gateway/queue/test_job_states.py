"""States of jobs on SQLite and Postgres: when a job is analysed, cancelled, failed and taken up again."""

from __future__ import annotations

from gateway.database.sessions import Sessions
from gateway.database.tables import Job, SourceImage
from gateway.queue.job_states import cancel_job, retry_job
from gateway.queue.leases import (
    claim,
    claim_analysis,
    fail,
    finish,
    release,
    renew,
    sweep,
    work_waits,
)
from tests.support.leases import LEASE, row, take, take_one
from tests.support.rows import add_job, let_time_pass


def test_a_job_is_analysed_once_and_only_after_its_last_image(sessions: Sessions) -> None:
    add_job(sessions, "a", images=2)
    first, second = take_one(sessions), take_one(sessions)
    with sessions.begin() as session:
        finish(session, first)
        assert claim_analysis(session, LEASE) is None
        fail(session, second, "unreadable", max_attempts=1)
        lost = claim_analysis(session, LEASE)
        assert lost is not None
        assert claim_analysis(session, LEASE) is None
    let_time_pass(sessions, LEASE + 1)
    with sessions.begin() as session:
        sweep(session, max_lost_leases=20)
        again = claim_analysis(session, LEASE)
        assert again is not None
        assert not finish(session, lost)
        assert finish(session, again)
    with sessions() as session:
        assert session.get_one(Job, "a").state == "done"
        assert session.get_one(Job, "a").finished_at is not None
        assert not work_waits(session)


def test_a_cancelled_job_keeps_its_finished_images_and_stops_the_rest(sessions: Sessions) -> None:
    add_job(sessions, "a", images=3)
    done, working = take_one(sessions), take_one(sessions)
    with sessions.begin() as session:
        finish(session, done)
    with sessions.begin() as session:
        assert cancel_job(session, "a")
    with sessions.begin() as session:
        assert not cancel_job(session, "a")
        assert not finish(session, working)
        assert renew(session, [working], LEASE) == set()
    assert [row(sessions, f"a-{n}").state for n in range(3)] == ["done", "cancelled", "cancelled"]
    assert take(sessions) is None


def test_a_cancelled_job_is_analysed_once_and_stays_cancelled(sessions: Sessions) -> None:
    add_job(sessions, "a", images=2)
    with sessions.begin() as session:
        assert cancel_job(session, "a")
        cancelled_at = session.get_one(Job, "a").finished_at
    for _ in range(2):  # a worker is stopped while it analyses
        with sessions.begin() as session:
            assert work_waits(session)
            analysis = claim_analysis(session, LEASE)
            assert analysis is not None
            assert release(session, analysis, "", delay=0)
    with sessions.begin() as session:
        analysis = claim_analysis(session, LEASE)
        assert analysis is not None
        assert finish(session, analysis, "nothing succeeded")
    with sessions() as session:
        job = session.get_one(Job, "a")
        assert (job.state, job.finished_at) == ("cancelled", cancelled_at)
        assert not work_waits(session)


def test_a_cancelled_job_whose_report_fails_or_loses_its_workers_stays_cancelled(sessions: Sessions) -> None:
    for name in ("a", "b"):
        add_job(sessions, name, images=1)
        with sessions.begin() as session:
            assert cancel_job(session, name)
            analysis = claim_analysis(session, LEASE)
            assert analysis is not None
            if name == "a":
                assert fail(session, analysis, "a bug of the report", max_attempts=1)
    let_time_pass(sessions, LEASE + 1)
    with sessions.begin() as session:
        assert sweep(session, max_lost_leases=1) == 1
    with sessions() as session:
        for name, reason in (("a", "a bug of the report"), ("b", "1 workers stopped")):
            job = session.get_one(Job, name)
            assert (job.state, reason in job.failure) == ("cancelled", True)
        assert not work_waits(session)


def test_a_job_without_successful_images_is_failed(sessions: Sessions) -> None:
    add_job(sessions, "a", images=1)
    lease = take_one(sessions)
    with sessions.begin() as session:
        assert fail(session, lease, "unreadable", max_attempts=1)
        analysis = claim_analysis(session, LEASE)
        assert analysis is not None
        assert finish(session, analysis, "nothing succeeded")
    with sessions() as session:
        job = session.get_one(Job, "a")
        assert (job.state, job.failure, job.finished_at is not None) == ("failed", "nothing succeeded", True)


def test_what_failed_or_was_cancelled_is_taken_up_again_as_if_for_the_first_time(sessions: Sessions) -> None:
    add_job(sessions, "a", images=4)
    with sessions.begin() as session:
        session.get_one(SourceImage, "a-3").digest = None
        session.get_one(SourceImage, "a-3").state = "failed"  # a file that was no image
    done, broken = take_one(sessions), take_one(sessions)
    with sessions.begin() as session:
        finish(session, done)
        fail(session, broken, "broken", max_attempts=1)
        assert cancel_job(session, "a")
    with sessions.begin() as session:
        assert retry_job(session, "a") == 2
    assert [row(sessions, f"a-{n}").state for n in range(4)] == ["done", "pending", "pending", "failed"]
    again = row(sessions, "a-1")
    assert (again.attempts, again.lost_leases, again.failure) == (0, 0, "")
    with sessions.begin() as session:
        assert session.get_one(Job, "a").state == "running"
        assert not finish(session, broken)
        for lease in (claim(session, LEASE), claim(session, LEASE)):
            assert lease is not None
            assert finish(session, lease)
        analysis = claim_analysis(session, LEASE)
        assert analysis is not None
        assert finish(session, analysis)
    with sessions.begin() as session:
        assert retry_job(session, "a") is None
        assert session.get_one(Job, "a").state == "done"


def test_an_analysis_under_way_does_not_finish_a_job_that_was_taken_up_again(sessions: Sessions) -> None:
    add_job(sessions, "a", images=1)
    lease = take_one(sessions)
    with sessions.begin() as session:
        fail(session, lease, "broken", max_attempts=1)
        analysis = claim_analysis(session, LEASE)
        assert analysis is not None
    with sessions.begin() as session:
        assert retry_job(session, "a") == 1
    with sessions.begin() as session:
        assert not finish(session, analysis)
        assert session.get_one(Job, "a").state == "running"
    assert take_one(sessions).id == "a-0"


def test_an_analysis_that_failed_is_repeated(sessions: Sessions) -> None:
    add_job(sessions, "a", images=1)
    with sessions.begin() as session:
        lease = claim(session, LEASE)
        assert lease is not None
        finish(session, lease)
        analysis = claim_analysis(session, LEASE)
        assert analysis is not None
        fail(session, analysis, "a bug of the report", max_attempts=1)
    with sessions.begin() as session:
        assert retry_job(session, "a") == 0
        assert claim_analysis(session, LEASE) is not None
