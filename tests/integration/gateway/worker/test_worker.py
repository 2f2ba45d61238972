"""The worker over HTTP on both databases: what it writes, which failures stay with one image, what it does once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import ModuleType

import httpx
import pytest
from sqlalchemy import func, select

import gateway.worker.worker as worker_module
from embedded.run import CeleryThread
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Event, Job, Prediction, Report
from gateway.jobs import jobs
from gateway.queue import leases
from gateway.queue.celery_tasks import wake_worker
from gateway.repairs import dispatch
from gateway.worker.worker import Worker, register
from shared.media.storage import image_key
from shared.problems import InvalidInput, NotReady, Overloaded
from shared.service.turns import START_TIME_HEADER
from tests.support.databases import ON_SQLITE
from tests.support.json_values import value_at
from tests.support.rows import let_time_pass
from tests.support.threads import background
from tests.support.work_site import QUICK, Site, SlowReport, wait_for, work_until

# Tests of what the worker does with errors and threads; the SQL beneath is tested on both databases elsewhere.


def test_one_step_does_a_whole_small_job(site: Site) -> None:
    site.add_job(images=3)
    site.worker().step()
    assert [image.state for image in site.images()] == ["done"] * 3
    assert site.state() == "done"
    counterfactuals, predictions = site.results()
    with site.sessions() as session:
        report = session.get_one(Report, "job")
        edits = session.scalar(select(func.count()).where(Counterfactual.arm == "edit"))
        rendered = session.scalar(select(func.count()).where(Counterfactual.image_digest.is_not(None)))
        events = session.scalars(select(Event).order_by(Event.sequence)).all()
        flips = session.scalars(select(Prediction.flipped).where(Prediction.counterfactual_id.is_not(None))).all()
        originals = session.scalars(select(Prediction).where(Prediction.counterfactual_id.is_(None))).all()
        edit = session.scalars(select(Counterfactual).where(Counterfactual.arm == "edit").limit(1)).one()
    assert site.store.exists(report.object_key)
    assert edits == 6
    assert len(predictions) == 2 * (3 + (rendered or 0))
    assert [event.payload["state"] for event in events] == ["done"] * 4
    assert None not in flips
    assert all(row.detail["rank"] in (1, 2, 3) and row.detail["truth_probability"] for row in originals)
    assert all(list(row.scores.values()) == [float(row.detail["rank"] == 1)] for row in originals)
    assert (edit.factor, edit.from_value, edit.to_value in ("rain", "fog")) == ("weather", "sunny", True)
    recorded = ("method", "revision", "parameters", "skipped_checks", "caption", "exchanges", "rendering")
    assert set(edit.lineage) == {*recorded, "evaluations", "control"}
    assert edit.lineage["exchanges"]
    assert edit.control_digest == value_at(edit.lineage, "control", "digest")
    assert edit.caption == edit.lineage["caption"]
    assert edit.evaluations == edit.lineage["evaluations"] == 2
    assert len(counterfactuals) == len(set(counterfactuals))


@pytest.mark.slow
@ON_SQLITE
def test_a_repeated_job_makes_no_call_and_a_second_model_only_predictions(site: Site) -> None:
    site.add_job("first", models=("m1",))
    site.worker().step()
    before = site.small.calls.copy()
    site.add_job("again", models=("m1",))
    site.worker().step()
    assert site.small.calls == before
    assert site.results("again") == site.results("first")
    site.add_job("second", models=("m1", "m2"))
    site.worker().step()
    assert site.small.calls - before == {"predict": 3}


@pytest.mark.slow
@ON_SQLITE
def test_a_job_without_models_only_generates(site: Site) -> None:
    site.add_job(images=1, models=())
    site.worker().step()
    counterfactuals, predictions = site.results()
    assert counterfactuals
    assert predictions == []
    assert site.state() == "done"


@ON_SQLITE
def test_one_bad_image_fails_alone_and_with_its_reason(site: Site) -> None:
    site.add_job(images=3)
    site.small.troubles = [InvalidInput("this picture is refused")] * 3
    worker = site.worker()
    work_until(worker, lambda: site.state() == "done")
    images = site.images()
    assert sorted(image.state for image in images) == ["done", "done", "done"]
    assert sum(image.attempts for image in images) == 3
    site.add_job("bad", images=3, seed=9)
    site.store.delete(image_key(str(images[1].digest)))
    work_until(worker, lambda: site.state("bad") == "done")
    bad = site.images("bad")
    assert [image.state for image in bad] == ["done", "failed", "done"]
    assert bad[1].attempts == 3
    assert str(images[1].digest) in bad[1].failure


@ON_SQLITE
def test_a_busy_service_costs_no_attempt(site: Site) -> None:
    site.add_job(images=1)
    site.small.troubles = [Overloaded("full", retry_after=1)] * 3
    worker = site.worker()
    worker.step()
    (image,) = site.images()
    assert (image.state, image.attempts) == ("pending", 0)
    assert "full" in image.failure
    site.small.troubles = []
    work_until(worker, lambda: site.state() == "done")
    (image,) = site.images()
    assert (image.attempts, image.lost_leases, image.failure) == (0, 0, "")


@ON_SQLITE
def test_the_stage_of_an_image_is_reported_while_it_runs(site: Site) -> None:
    site.add_job(images=1)
    stages: list[str | None] = []
    called = site.small._called

    def noting(name: str) -> None:
        stages.append(site.images()[0].stage)
        called(name)

    site.small._called = noting  # type: ignore[method-assign]
    site.worker().step()
    assert list(dict.fromkeys(stages)) == ["captioning", "proposing", "rendering", "checking", "predicting"]
    assert site.images()[0].state == "done"


@ON_SQLITE
def test_calls_carry_the_start_time_of_their_image(site: Site) -> None:
    site.add_job(images=2)
    start_times: list[str] = []
    worker = site.worker()

    async def note(request: httpx.Request) -> None:
        if request.method == "POST":
            start_times.append(request.headers[START_TIME_HEADER])

    site.clients[0]._http.client.event_hooks = {"request": [note]}
    worker.step()
    assert len(start_times) > 2
    assert len(set(start_times)) == 3  # one moment for each image, and one for the analysis
    assert start_times == sorted(start_times, key=float)


@contextmanager
def waiting_step(site: Site, worker: Worker) -> Iterator[None]:
    """A step of the worker that waits for a reply that does not come; the block must end the step."""
    site.small.gate.clear()
    with background(worker.step):
        wait_for(lambda: site.images()[0].stage == "captioning")
        yield
    site.small.gate.set()


@pytest.mark.parametrize("ended_by", ["cancel", "delete"])
def test_a_cancelled_or_deleted_job_ends_its_calls_in_flight(site: Site, ended_by: str) -> None:
    site.add_job(images=2)
    worker = site.worker()
    worker.start()
    with waiting_step(site, worker), site.sessions.begin() as session:
        if ended_by == "cancel":
            jobs.cancel(session, LOCAL_OWNER, "job")
        else:
            jobs.remove(session, LOCAL_OWNER, "job")
    worker.stop()
    assert [image.state for image in site.images()] == ["cancelled"] * 2  # housekeeping removes those of a deleted job
    assert site.results() == ([], [])
    assert site.small.calls["render"] == 0


@ON_SQLITE
def test_a_stopped_worker_ends_its_calls_and_releases_its_image(site: Site) -> None:
    site.add_job(images=1)
    worker = site.worker()
    with waiting_step(site, worker):
        worker.stop()
    (image,) = site.images()
    assert (image.state, image.attempts, image.lost_leases) == ("pending", 0, 0)


@ON_SQLITE
def test_a_worker_that_stops_ends_its_retries(site: Site) -> None:
    site.add_job(images=1)
    site.small.troubles = [Overloaded("full", retry_after=9)] * 3
    worker = site.worker(wait=600)
    with background(worker.step):
        wait_for(lambda: len(site.small.troubles) < 3)
        worker.stop()
    assert site.small.troubles, "there is no further retry"
    assert site.images()[0].state == "pending"


@ON_SQLITE
def test_leases_are_renewed_until_the_last_step_has_ended(site: Site) -> None:
    site.add_job(images=1)
    slow, worker = SlowReport(site), site.worker()
    worker.start()

    def expires_at() -> datetime:
        with site.sessions() as session:
            at = session.get_one(Job, "job").lease_expires_at
        assert at is not None
        return at

    def renewed_since(before: datetime) -> bool:
        return expires_at() > before

    with background(worker.step, release=slow.go_on.set):
        assert slow.writing.wait(300)
        worker.stop()
        for _ in range(2):
            wait_for(partial(renewed_since, expires_at()), seconds=60)
    assert site.state() == "done"
    wait_for(lambda: not any(thread.is_alive() for thread in worker._threads))


@ON_SQLITE
@pytest.mark.parametrize(("module", "thread"), [(worker_module, "housekeeping_loop"), (dispatch, "repair_loop")])
def test_a_worker_with_a_dead_thread_is_not_healthy(
    site: Site, module: ModuleType, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, thread, lambda *_: None)
    worker = site.worker()
    worker.refuse_dead()
    worker.start()
    wait_for(lambda: not all(each.is_alive() for each in worker._threads))
    with pytest.raises(NotReady):
        worker.refuse_dead()
    worker.stop()
    worker.refuse_dead()


@ON_SQLITE
def test_celery_runs_many_images_at_a_time_and_wakes_itself(site: Site) -> None:
    worker = site.worker()
    register(site.celery, worker)
    celery = CeleryThread(site.celery, QUICK.images_in_flight)
    try:
        site.small.gate.clear()
        site.add_job("woken", images=6)
        wake_worker(site.celery)
        wait_for(lambda: sum(image.state == "leased" for image in site.images("woken")) == 6)
        site.small.gate.set()
        wait_for(lambda: site.state("woken") == "done")
        site.add_job("unnoticed", images=2, seed=1)  # its message was lost
        wait_for(lambda: site.state("unnoticed") == "done")
    finally:
        celery.stop()


def test_the_work_of_a_dead_worker_is_taken_over_and_not_repeated(site: Site) -> None:
    site.add_job(images=1)
    with site.sessions.begin() as session:
        assert leases.claim(session, QUICK.lease_seconds) is not None  # and its worker dies
    let_time_pass(site.sessions, QUICK.lease_seconds + 1)
    worker = site.worker()
    worker.start()
    work_until(worker, lambda: site.state() == "done")
    worker.stop()
    (image,) = site.images()
    assert (image.state, image.lost_leases, image.attempts) == ("done", 1, 0)
