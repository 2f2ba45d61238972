"""The states of images under any order of events: hypothesis plays workers, crashes, cancels and sweeps."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import select, update

from gateway.database.counts import count_rows
from gateway.database.events import add_event
from gateway.database.sessions import database_now, open_engine, open_sessions
from gateway.database.tables import Job, SourceImage, Table
from gateway.queue import job_states, leases
from gateway.queue.leases import Lease
from tests.support.rows import add_job

JOBS = ("a", "b")
IMAGES = 3
MAX_ATTEMPTS = 3
MAX_LOST = 4


class Work(RuleBasedStateMachine):
    """Two jobs of three images; `leases` are those that some worker believes to hold, dead or alive."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.engine = open_engine(f"sqlite:///{Path(self.directory.name) / 'work.db'}")
        Table.metadata.create_all(self.engine)
        self.sessions = open_sessions(self.engine)
        for job in JOBS:
            add_job(self.sessions, job, images=IMAGES)
        self.leases: list[Lease] = []
        self.finished: list[str] = []
        self.cancelled: set[str] = set()

    def teardown(self) -> None:
        self.engine.dispose()
        self.directory.cleanup()

    @rule()
    def claim(self) -> None:
        with self.sessions.begin() as session:
            lease = leases.claim_analysis(session, 3_600) or leases.claim(session, 3_600)
        if lease is not None:
            assert lease.table is Job or lease.job_id not in self.cancelled
            self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), keep=st.booleans())
    def finish(self, data: st.DataObject, keep: bool) -> None:
        lease = self._some(data, keep)
        with self.sessions.begin() as session:
            if leases.finish(session, lease):
                self.finished.append(lease.id)
                if lease.table is SourceImage:
                    add_event(session, lease.job_id, "image", {"state": "done"}, {"done": 1})

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), keep=st.booleans(), outcome=st.sampled_from(["fail", "release", "lose", "renew"]))
    def other_end(self, data: st.DataObject, keep: bool, outcome: str) -> None:
        lease = self._some(data, keep or outcome == "renew")
        with self.sessions.begin() as session:
            if outcome == "fail":
                leases.fail(session, lease, "broken", MAX_ATTEMPTS, delay=0)
            elif outcome == "release":
                leases.release(session, lease, "busy", delay=0)
            elif outcome == "lose":
                leases.record_lost(session, lease, "died", MAX_LOST, delay=0)
            else:
                leases.renew(session, [lease], 3_600)

    @rule()
    def everybody_dies(self) -> None:
        with self.sessions.begin() as session:
            leases.expire_leases(session)
            leases.sweep(session, MAX_LOST)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def one_is_late(self, data: st.DataObject) -> None:
        lease = self._some(data, keep=True)
        with self.sessions.begin() as session:
            session.execute(
                update(lease.table)
                .where(lease.table.lease_token == lease.token)
                .values(lease_expires_at=database_now(-1))
            )
            leases.sweep(session, MAX_LOST)

    @rule(job=st.sampled_from(JOBS))
    def cancel(self, job: str) -> None:
        with self.sessions.begin() as session:
            if job_states.cancel_job(session, job):
                self.cancelled.add(job)

    @rule(job=st.sampled_from(JOBS))
    def retry(self, job: str) -> None:
        with self.sessions.begin() as session:
            if job_states.retry_job(session, job) is not None:
                self.cancelled.discard(job)
                self.finished = [row for row in self.finished if row != job]

    @invariant()
    def nothing_is_finished_twice(self) -> None:
        assert len(self.finished) == len(set(self.finished))

    @invariant()
    def rows_make_sense(self) -> None:
        with self.sessions() as session:
            jobs = {job.id: job for job in session.scalars(select(Job))}
            images = session.scalars(select(SourceImage)).all()
        tokens = [image.lease_token for image in images if image.lease_token]
        assert len(tokens) == len(set(tokens))
        for image in images:
            assert image.attempts < MAX_ATTEMPTS or image.state == "failed"
            assert image.lost_leases < MAX_LOST or image.state in ("failed", "cancelled")
            assert (image.id in self.finished) == (image.state == "done")
            over = jobs[image.job_id].state in ("done", "cancelled")
            assert not (over and image.state in ("pending", "leased"))
        for job in jobs.values():
            assert (job.state == "cancelled") == (job.id in self.cancelled)
            assert (job.finished_at is None) == (job.state == "running")

    @rule(job=st.sampled_from(JOBS))
    def predict_again(self, job: str) -> None:
        with self.sessions.begin() as session:
            if job_states.predict_again(session, job) is not None:
                self.cancelled.discard(job)
                self.finished = [row for row in self.finished if row.partition("-")[0] != job]

    @invariant()
    def counters_are_those_of_the_rows(self) -> None:
        with self.sessions() as session:
            for job in session.scalars(select(Job)):
                assert Counter(job.counts) == count_rows(session, job.id)

    @invariant()
    def work_is_never_forgotten(self) -> None:
        """Whatever is open is leased, or claimable now (no delays are used here)."""
        with self.sessions() as session:
            to_report = session.scalars(select(Job).where((Job.state == "running") | Job.report_due)).all()
            waits = leases.work_waits(session)
            unfinished = session.execute(
                select(SourceImage.job_id, SourceImage.state).where(SourceImage.state.in_(["pending", "leased"]))
            ).all()
        pending = any(state == "pending" for _, state in unfinished)
        open_jobs = {job for job, _ in unfinished}
        analysable = any(job.lease_token is None and job.id not in open_jobs for job in to_report)
        assert waits == (pending or analysable)

    def _some(self, data: st.DataObject, keep: bool) -> Lease:
        lease: Lease = data.draw(st.sampled_from(self.leases))
        if not keep:
            self.leases.remove(lease)
        return lease


TestWork = pytest.mark.slow(Work.TestCase)
TestWork.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
