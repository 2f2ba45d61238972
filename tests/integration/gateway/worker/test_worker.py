"""The worker over real HTTP, a real store and both databases: what is written, what fails alone, what is done once."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import func, select

from embedded.celery_thread import CeleryThread
from gateway.database.tables import Counterfactual, Event, Job, Prediction, Report
from gateway.queue import leases
from gateway.queue.celery_tasks import wake_worker
from gateway.worker.worker import register
from shared.problems import InvalidInput, Overloaded
from shared.turns import START_TIME_HEADER
from tests.support.rows import let_time_pass
from tests.support.work_site import QUICK, Site, wait_for

# Tests of what the worker does with errors and threads; the SQL beneath is tested on both databases elsewhere.
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_one_step_does_a_whole_small_job(site: Site) -> None:
    site.add_job(images=3)
    site.worker().step()
    assert [image.state for image in site.images()] == ["done"] * 3
    assert site.state() == "done"
    made, said = site.results()
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
    assert len(said) == 2 * (3 + (rendered or 0))
    assert [event.payload["state"] for event in events] == ["done"] * 4
    assert None not in flips
    assert all(row.rank in (1, 2, 3) and row.ground_truth_probability for row in originals)
    assert (edit.factor, edit.from_value, edit.to_value in ("rain", "fog")) == ("weather", "sunny", True)
    assert edit.lineage["exchanges"]
    assert edit.control_digest == edit.lineage["control"]["digest"]
    assert len(made) == len(set(made))


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


@ON_SQLITE
def test_a_job_without_models_only_generates(site: Site) -> None:
    site.add_job(images=1, models=())
    site.worker().step()
    made, said = site.results()
    assert made
    assert said == []
    assert site.state() == "done"


@ON_SQLITE
def test_one_bad_image_fails_alone_and_by_name(site: Site) -> None:
    site.add_job(images=3)
    site.small.troubles = [InvalidInput("this picture is refused")] * 3
    worker = site.worker()
    wait_for(lambda: worker.step() or site.state() == "done")
    images = site.images()
    assert sorted(image.state for image in images) == ["done", "done", "done"]
    assert sum(image.attempts for image in images) == 3
    site.add_job("bad", images=3, seed=9)
    site.store.delete(f"images/{images[1].digest[:2]}/{images[1].digest}.png")
    wait_for(lambda: worker.step() or site.state("bad") == "done")
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
    wait_for(lambda: worker.step() or site.state() == "done")
    (image,) = site.images()
    assert (image.attempts, image.lost_leases, image.failure) == (0, 0, "")


@ON_SQLITE
def test_what_is_done_with_an_image_is_told_while_it_is_done(site: Site) -> None:
    site.add_job(images=1)
    seen: list[str | None] = []
    called = site.small._called

    def noting(name: str) -> None:
        seen.append(site.images()[0].stage)
        called(name)

    site.small._called = noting  # type: ignore[method-assign]
    site.worker().step()
    assert list(dict.fromkeys(seen)) == ["captioning", "proposing", "rendering", "checking", "predicting"]
    assert site.images()[0].state == "done"


@ON_SQLITE
def test_calls_say_when_the_work_on_their_image_was_begun(site: Site) -> None:
    site.add_job(images=2)
    start_times: list[str] = []
    worker = site.worker()
    site.clients[0]._client.event_hooks["request"].append(
        lambda request: start_times.append(request.headers[START_TIME_HEADER]) if request.method == "POST" else None
    )
    worker.step()
    assert len(start_times) > 2
    assert len(set(start_times)) == 2  # one moment for each image
    assert start_times == sorted(start_times, key=float)


def test_a_cancelled_job_stops_its_workers_and_writes_nothing_more(site: Site) -> None:
    site.add_job(images=2)
    site.small.gate.clear()
    worker = site.worker()
    worker.start()
    step = threading.Thread(target=worker.step)
    step.start()
    wait_for(lambda: site.images()[0].state == "leased")
    with site.sessions.begin() as session:
        leases.cancel_job(session, "job")
    wait_for(lambda: not worker._leases)  # a renewal notices
    site.small.gate.set()
    step.join(120)
    worker.stop()
    assert [image.state for image in site.images()] == ["cancelled"] * 2
    assert site.results() == ([], [])
    assert site.small.calls["render"] == 0


@ON_SQLITE
def test_a_stopped_worker_gives_its_image_back(site: Site) -> None:
    site.add_job(images=1)
    site.small.gate.clear()
    worker = site.worker()
    step = threading.Thread(target=worker.step)
    step.start()
    wait_for(lambda: site.images()[0].state == "leased")
    worker.stop()
    site.small.gate.set()
    step.join(120)
    (image,) = site.images()
    assert (image.state, image.attempts, image.lost_leases) == ("pending", 0, 0)


@ON_SQLITE
def test_the_report_of_a_small_job_does_not_wait_for_a_large_one(site: Site) -> None:
    site.add_job("small", images=1)
    worker = site.worker()
    worker.step()
    with site.sessions.begin() as session:
        session.get_one(Job, "small").state = "running"  # as if its last image had just been finished
    site.add_job("large", images=QUICK.images_per_message + 4, seed=1)
    worker.step()
    assert site.state("small") == "done"
    assert site.state("large") == "running"


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
    wait_for(lambda: worker.step() or site.state() == "done")
    worker.stop()
    (image,) = site.images()
    assert (image.state, image.lost_leases, image.attempts) == ("done", 1, 0)
