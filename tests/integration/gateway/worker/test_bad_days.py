"""Faults: services that hang, fail or lack memory, a full store, a stalled database, wrong clocks.

Each test states what a job comes to: nothing that passes by itself costs an image an attempt; what an image may have
caused counts, and leaves it out by name in the end; the others go on.
"""

from __future__ import annotations

import base64
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import psutil
import pytest
from fastapi import Request, Response
from sqlalchemy import select, update

import gateway.database.table_base
import gateway.model_services.clients
from gateway.database.sessions import Sessions, database_now, migrate, open_engine, open_sessions
from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.jobs.progress import progress
from gateway.model_services.clients import ModelServices
from gateway.queue import job_states, leases
from gateway.queue.celery_tasks import send_repair, wake_worker
from gateway.settings import Settings
from gateway.worker.worker import Worker
from shared.celery_app import broker_fault, open_celery
from shared.problem_replies import problem_reply
from shared.problems import DependencyFailed, DeviceFailed, GenerationFailed, OutOfMemory, Problem
from shared.s3_store import S3Store
from shared.schemas.repairs import RepairLease
from shared.schemas.service import SERVICES
from shared.storage import DirectoryStore
from tests.support.databases import ON_SQLITE
from tests.support.deployment import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    postgres,
    postgres_url,
    redis,
    redis_url,
    s3,
    s3_endpoint,
    worker,
)
from tests.support.processes import Part
from tests.support.rows import let_time_pass
from tests.support.small_services import SmallServices, serve
from tests.support.threads import background
from tests.support.work_site import Site, wait_for

ON_POSTGRES = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
HASTY = Settings(
    lease_seconds=60, lease_renewal_seconds=0.3, sweep_seconds=0.3, pause_seconds=0.05, max_lost_leases=4,
)  # fmt: skip
STALL = 1.0  # seconds; however short, the leases expire in it
Answer = Callable[[bytes], Response | None]


class Day:
    """A site whose services can be made to answer something else: `answer` sees each request's body."""

    def __init__(self, sessions: Sessions, directory: Path, small: SmallServices, url: str) -> None:
        self.site = Site(sessions, DirectoryStore(directory / "objects"), small, url)
        self.answer: Answer = lambda body: None

    def worker(self, deadline: float = 120.0, pause: float = 0.05) -> Worker:
        services = ModelServices(dict.fromkeys(SERVICES, self.site.url), deadline=deadline, wait=1.5)
        self.site.clients.append(services)
        settings = HASTY.model_copy(update={"pause_seconds": pause})
        worker = Worker(settings, self.site.sessions, self.site.store, services, self.site.celery)
        self.site.workers.append(worker)
        return worker

    def resume(self) -> None:
        """As if the pauses after failures were over."""
        with self.site.sessions.begin() as session:
            session.execute(update(SourceImage).values(not_before=None))

    def until_done(self, worker: Worker) -> list[SourceImage]:
        def over() -> bool:
            worker.step()
            return self.site.state() == "done"

        wait_for(over)
        return self.site.images()


@pytest.fixture
def day(sessions: Sessions, tmp_path: Path) -> Iterator[Day]:
    small = SmallServices()

    @small.app.middleware("http")
    async def spoil(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        wrong = today.answer(await request.body()) if request.method == "POST" else None
        return wrong or await answer(request)

    with serve(small) as url:
        today = Day(sessions, tmp_path, small, url)
        yield today
        today.site.close()


def first(number: int, wrong: Response) -> Answer:
    """The first requests are answered wrongly."""
    waiting = [wrong] * number
    return lambda body: waiting.pop() if waiting else None


def about(day: Day, position: int, wrong: Response) -> Answer:
    """Requests that hold one of the source images are answered wrongly, always."""
    digest = day.site.images()[position].digest
    png = base64.b64encode(day.site.store.get(f"images/{str(digest)[:2]}/{digest}.png"))
    return lambda body: wrong if png in body else None


@ON_SQLITE
def test_a_hanging_service_costs_a_lease_and_no_attempt(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.model_services.clients, "GRACE_SECONDS", 0.2)
    day.site.add_job(images=1)
    day.site.small.gate.clear()
    day.worker(deadline=2, pause=600).step()
    (image,) = day.site.images()
    assert (image.state, image.attempts, image.lost_leases) == ("pending", 0, 1)
    assert "/v1/captions" in image.failure
    day.site.small.gate.set()
    day.resume()
    (image,) = day.until_done(day.worker())
    assert (image.state, image.attempts, image.failure) == ("done", 0, "")


@ON_SQLITE
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Response(b"Internal Server Error", 500), "failed at /v1/captions: a service answered 500"),
        (Response(b"<html>not found</html>", 404), "a service answered 404"),
        (Response(b"\x00\xff garbage", 200), "CaptionReply"),
        (Response(b'{"captions": 3}', 200), "CaptionReply"),
        (Response(b"", 200), "CaptionReply"),
    ],
    ids=["500", "404", "bytes", "another shape", "nothing"],
)
def test_malformed_replies_cost_a_lease_and_no_attempt(day: Day, wrong: Response, words: str) -> None:
    day.site.add_job(images=1)
    day.answer = first(1, wrong)
    worker = day.worker(pause=600)
    worker.step()
    (image,) = day.site.images()
    assert (image.state, image.attempts, image.lost_leases) == ("pending", 0, 1)
    assert words in image.failure
    day.resume()
    (image,) = day.until_done(worker)
    assert (image.attempts, image.lost_leases) == (0, 1)


@ON_SQLITE
@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_in_front_of_an_absent_service_costs_nothing(day: Day, status: int) -> None:
    day.site.add_job(images=1)
    day.answer = first(1, Response(b"<html>bad gateway</html>", status))
    (image,) = day.until_done(day.worker())
    assert (image.attempts, image.lost_leases, image.failure) == (0, 0, "")


def test_an_image_that_breaks_its_service_fails_with_a_reason_and_the_others_finish(day: Day) -> None:
    day.site.add_job(images=3)
    day.answer = about(day, 1, problem_reply(Problem("a bug that one picture wakes")))
    images = day.until_done(day.worker())
    assert [image.state for image in images] == ["done", "failed", "done"]
    assert (images[1].attempts, images[1].lost_leases) == (0, HASTY.max_lost_leases)
    assert "a bug that one picture wakes" in images[1].failure
    day.answer = lambda body: None  # the service was mended
    with day.site.sessions.begin() as session:
        assert job_states.retry_job(session, "job") == 1
    images = day.until_done(day.worker())
    assert [image.state for image in images] == ["done"] * 3


@ON_SQLITE
def test_an_image_that_lacks_memory_where_others_of_its_size_do_not_fails_after_three_attempts(day: Day) -> None:
    day.site.add_job(images=2)
    day.answer = about(day, 0, problem_reply(OutOfMemory("one image needs 12 GB, and 8 GB are free")))
    images = day.until_done(day.worker())
    assert [(image.state, image.attempts) for image in images] == [("failed", 3), ("done", 0)]
    assert images[0].lost_leases <= 1  # the first time, when nobody knew
    assert "needs 12 GB" in images[0].failure


@ON_SQLITE
@pytest.mark.parametrize(
    "trouble",
    [OutOfMemory("somebody else's training"), DeviceFailed("CUDA error: unspecified launch failure"), Problem("dead")],
    ids=lambda trouble: trouble.name,
)
def test_a_device_that_fails_for_every_image_pauses_the_job_and_costs_no_attempt(day: Day, trouble: Problem) -> None:
    day.site.add_job(images=5)
    day.answer = lambda body: problem_reply(trouble) if b"renderings" in body else None
    worker = day.worker()
    for _ in range(3 * HASTY.max_lost_leases):
        worker.step()
        day.resume()
    images = day.site.images()
    assert {(image.state, image.attempts) for image in images} == {("pending", 0)}
    # One each; the first image may pay again where the processor is so busy that it is due before another has failed.
    assert sum(image.lost_leases for image in images) <= len(images) + 2
    with day.site.sessions() as session:
        held_up = progress(session, session.get_one(Job, "job")).held_up
    assert "diffusion_service" in held_up
    assert trouble.detail in held_up
    day.answer = lambda body: None  # restarted
    images = day.until_done(worker)
    assert {(image.state, image.attempts) for image in images} == {("done", 0)}


@ON_SQLITE
def test_a_language_model_without_valid_replies_refuses_edits_and_no_image(day: Day) -> None:
    day.site.add_job(images=2)
    questions: list[bytes] = []

    def no_keywords(body: bytes) -> Response | None:
        if b"List the phrases of the caption" not in body:
            return None
        questions.append(body)
        return problem_reply(GenerationFailed("no valid reply in 2 attempts"))

    day.answer = no_keywords
    images = day.until_done(day.worker())
    assert {(image.state, image.attempts) for image in images} == {("done", 0)}
    assert len(questions) == len(set(questions)) == 2
    with day.site.sessions() as session:
        edits = session.execute(select(Counterfactual.arm, Counterfactual.check, Counterfactual.image_digest)).all()
    assert [tuple(edit) for edit in edits] == [("edit", "invalid reply", None)] * 2


@ON_SQLITE
def test_a_service_that_cannot_do_one_image_does_not_make_the_job_endless(day: Day) -> None:
    day.site.add_job(images=2)
    day.answer = about(day, 0, problem_reply(DependencyFailed("the model at http://model failed 5 times: status 500")))
    worker = day.worker()

    def over() -> bool:
        worker.step()
        day.resume()
        return day.site.state() == "done"

    wait_for(over)
    images = day.site.images()
    assert [image.state for image in images] == ["failed", "done"]
    assert (images[0].attempts, images[0].lost_leases) == (0, HASTY.max_lost_leases)
    assert "status 500" in images[0].failure


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
        for part in (server, process):
            part.start()
            part.wait()
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
def running(server: Part) -> Iterator[S3Store]:
    """A store on an S3 server that is killed when the block ends."""
    server.start()
    try:
        server.wait()
        yield S3Store(s3_endpoint(server), BUCKET, ACCESS_KEY, SECRET_KEY, secure=False)
    finally:
        server.kill()


def stall(server: Part, site: Site) -> None:
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


def test_a_database_that_stalls_longer_than_a_lease_costs_time_only(tmp_path: Path) -> None:
    server = postgres(tmp_path)
    server.start()
    small = SmallServices(seconds=0.02)
    try:
        server.wait()
        engine = open_engine(postgres_url(server))
        migrate(engine)
        with serve(small) as url:
            day = Day(open_sessions(engine), tmp_path, small, url)
            day.site.add_job(images=4)
            with closing(day.site):
                first_worker, second_worker = day.worker(), day.worker()
                first_worker.start()
                second_worker.start()
                with background(first_worker.step, second_worker.step):
                    wait_for(lambda: any(image.state == "leased" for image in day.site.images()))
                    stall(server, day.site)
                let_time_pass(day.site.sessions, HASTY.lease_seconds + 1)  # leases of steps that the stall broke off
                images = day.until_done(first_worker)
                counterfactuals, predictions = day.site.results()
        engine.dispose()
    finally:
        server.kill()
    assert [(image.state, image.attempts) for image in images] == [("done", 0)] * 4
    assert len(counterfactuals) == len(set(counterfactuals)) > 0
    assert len(predictions) == len(set(predictions)) > 0


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
