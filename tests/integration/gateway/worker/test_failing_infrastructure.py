"""Faults around a worker: a full store, a stalled database, wrong clocks, an absent broker."""

from __future__ import annotations

import resource
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

import gateway.database.sessions
import gateway.database.table_base
import gateway.model_services.clients
from gateway.database.sessions import Sessions, database_now, migrate, open_engine, open_sessions
from gateway.database.tables import SourceImage
from gateway.queue import leases
from gateway.queue.celery_tasks import send_repair, wake_worker
from shared.media.s3_store import S3Store
from shared.problems import DependencyFailed
from shared.schemas.repairs import RepairLease
from shared.service.celery_app import broker_fault, open_celery
from tests.support.bad_days import HASTY, Day
from tests.support.deployment import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    open_directory,
    postgres,
    postgres_url,
    redis,
    redis_url,
    s3,
    s3_endpoint,
    worker,
)
from tests.support.processes import Program
from tests.support.rows import let_time_pass
from tests.support.small_services import SmallServices, serve
from tests.support.threads import background
from tests.support.work_site import Site, wait_for

ON_POSTGRES = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
STALL = 1.0  # seconds; however short, the leases expire in it


@ON_POSTGRES
def test_a_full_object_store_only_delays_the_work(
    day: Day, sessions: Sessions, database_url: str, tmp_path: Path
) -> None:
    day.site.add_job(images=2)
    server = redis(tmp_path)
    settings = {
        "CONTRAFACT_DATABASE_URL": database_url,
        "CONTRAFACT_BROKER_URL": redis_url(server),
        "CONTRAFACT_OBJECT_STORE": f"directory:{tmp_path / 'objects'}",
        "CONTRAFACT_SWEEP_SECONDS": "0.3",
        "CONTRAFACT_PAUSE_SECONDS": "0.3",
        **{f"CONTRAFACT_{name}_URL": day.site.url for name in ("CAPTION", "LLM", "DIFFUSION", "EVALUATOR")},
    }
    process = worker(tmp_path, "worker", settings)
    process.log = Path("/dev/null")  # to which the limit below does not apply
    try:
        for program in (server, process):
            program.start()
            program.wait()
        assert process.process is not None
        # No file beyond so many bytes: what the kernel then says is what it says of a full disk, but for the number.
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        wake_worker(open_celery(redis_url(server)))
        wait_for(lambda: any("cannot write to the object store" in i.failure for i in day.site.images()), seconds=600)
        assert all((image.attempts, image.lost_leases) == (0, 0) for image in day.site.images())
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        wait_for(lambda: day.site.state() == "done")
    finally:
        process.kill()
        server.kill()
    assert [(image.state, image.attempts) for image in day.site.images()] == [("done", 0)] * 2
    assert not list((tmp_path / "objects" / ".incoming").iterdir())


@pytest.mark.slow
def test_a_full_s3_server_is_reported_and_takes_objects_again_when_there_is_room(tmp_path: Path) -> None:
    with running(s3(tmp_path)) as store:
        store.create_bucket()
        store.put("images/a.png", b"12345")
    with running(s3(tmp_path, full=True)) as store, pytest.raises(DependencyFailed, match="the object store failed"):
        store.put("images/b.png", b"12345")
    with running(s3(tmp_path)) as store:
        store.put("images/b.png", b"12345")
        assert [item.key for item in store.iterate()] == ["images/a.png", "images/b.png"]


@contextmanager
def running(server: Program) -> Iterator[S3Store]:
    """A store on an S3 server that is killed when the block ends."""
    server.start()
    try:
        server.wait()
        yield S3Store(s3_endpoint(server), BUCKET, ACCESS_KEY, SECRET_KEY, secure=False)
    finally:
        server.kill()


def stall(server: Program, site: Site) -> None:
    """Suspend the database's processes for longer than a lease."""
    assert server.process is not None
    processes = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children()]
    let_time_pass(site.sessions, HASTY.lease_seconds + 1)
    for process in processes:
        process.suspend()
    try:
        time.sleep(STALL)
    finally:
        for process in processes:
            process.resume()


@pytest.mark.slow
def test_a_database_that_stalls_longer_than_a_lease_costs_time_only(tmp_path: Path) -> None:
    small = SmallServices(seconds=0.02)
    with open_directory() as directory, ExitStack() as stack:
        server = postgres(directory)
        stack.callback(server.kill)
        server.start()
        server.wait()
        engine = open_engine(postgres_url(server))
        stack.callback(engine.dispose)
        migrate(engine)
        day = Day(open_sessions(engine), tmp_path, small, stack.enter_context(serve(small)))
        day.site.add_job(images=4)
        stack.enter_context(closing(day.site))
        first_worker, second_worker = day.worker(), day.worker()
        first_worker.start()
        second_worker.start()
        with background(first_worker.step, second_worker.step):
            wait_for(lambda: any(image.state == "leased" for image in day.site.images()))
            stall(server, day.site)
        let_time_pass(day.site.sessions, HASTY.lease_seconds + 1)  # leases of steps that the stall broke off
        images = day.until_done(first_worker)
        counterfactuals, predictions = day.site.results()
    assert [(image.state, image.attempts) for image in images] == [("done", 0)] * 4
    assert len(counterfactuals) == len(set(counterfactuals)) > 0
    assert len(predictions) == len(set(map(str, predictions))) > 0


@pytest.mark.slow
def test_sqlite_that_another_program_locks_for_longer_than_its_timeout_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock holds at the claims, while results are stored, and while a request is answered."""
    monkeypatch.setattr(gateway.database.sessions, "SQLITE_BUSY_MILLISECONDS", 1000)
    small = SmallServices(seconds=0.05)
    with ExitStack() as stack:
        engine = open_engine(f"sqlite:///{tmp_path / 'contrafact.db'}")
        stack.callback(engine.dispose)
        migrate(engine)
        day = Day(open_sessions(engine), tmp_path, small, stack.enter_context(serve(small)))
        day.site.add_job(images=4)
        stack.enter_context(closing(day.site))
        worker = day.worker()
        worker.start()
        locked = 0
        with closing(sqlite3.connect(tmp_path / "contrafact.db", isolation_level=None, timeout=60)) as other:
            for _ in range(4):
                other.execute("BEGIN IMMEDIATE")
                with background(lambda: as_celery_runs(worker.step)):
                    time.sleep(2 * STALL)
                    other.execute("COMMIT")
                    (unfinished,) = other.execute("SELECT COUNT(*) FROM source_images WHERE state != 'done'").fetchone()
                    locked += unfinished
        monkeypatch.undo()
        engine.dispose()  # new connections have the usual timeout, so that a busy machine does not fail the rest
        let_time_pass(day.site.sessions, HASTY.lease_seconds + 1)  # leases of steps that the lock broke off
        images = day.until_done(worker)
        counterfactuals, predictions = day.site.results()
    assert locked, "the locks came too late to mean anything"
    assert [(image.state, image.attempts) for image in images] == [("done", 0)] * 4
    assert len(counterfactuals) == len(set(counterfactuals)) > 0
    assert len(predictions) == len(set(map(str, predictions))) > 0


def as_celery_runs(step: Callable[[], None]) -> None:
    """A step whose error ends it alone."""
    with suppress(OperationalError):
        step()


@ON_POSTGRES
@pytest.mark.parametrize("hours", [-5, 5])
def test_a_worker_whose_clock_is_wrong_neither_loses_nor_steals_a_lease(
    day: Day, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases run on the database's clock; the clock of a worker's machine says only when things were made."""
    day.site.add_job(images=3)
    with day.site.sessions.begin() as session:
        healthy = leases.claim(session, 3_600)  # for longer than the test takes on any machine
        assert healthy is not None
    with day.site.sessions.begin() as session:
        dead = leases.claim(session, -1)  # it has expired already
        assert dead is not None

    class Shifted(datetime):
        """The same clock, set wrongly."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(hours=hours)

    monkeypatch.setattr(gateway.database.table_base, "datetime", Shifted)
    assert abs(gateway.database.table_base.utc_now() - datetime.now(UTC)) > timedelta(hours=4)
    worker = day.worker()
    worker.start()

    def over() -> bool:
        worker.step()
        return [image.state for image in day.site.images()] == ["leased", "done", "done"]

    wait_for(over, seconds=600)
    worker.stop()
    taken, swept, plain = day.site.images()
    assert (taken.lost_leases, swept.lost_leases, plain.lost_leases) == (0, 1, 0)
    with day.site.sessions() as session:
        result = session.execute(select(SourceImage.lease_expires_at, database_now()).where(SourceImage.id == taken.id))
        expires, now = result.one()
    assert expires is not None
    assert expires - now < timedelta(seconds=3_601)


def test_an_absent_broker_fails_no_request_and_costs_little_time(caplog: pytest.LogCaptureFixture) -> None:
    celery = open_celery("redis://127.0.0.1:1/0")
    assert broker_fault(celery) == ""  # and its client is imported
    wake_worker(celery)
    assert "wake-up" in caplog.text


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/no-number", "redis://127.0.0.1:none/0", "nonsense://127.0.0.1"])
def test_a_broken_broker_fails_no_request(url: str, caplog: pytest.LogCaptureFixture) -> None:
    celery = open_celery(url)
    wake_worker(celery)
    send_repair(celery, RepairLease(repair="a1", token="b2"))
    assert "wake-up" in caplog.text
    assert "repair a1" in caplog.text
