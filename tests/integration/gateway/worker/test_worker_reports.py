"""Reports that a worker builds: of cancelled and failed jobs, overtaken ones, and beside a large job."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import select

from gateway.database.tables import LOCAL_OWNER, Event, Job
from gateway.jobs import jobs
from gateway.queue import leases
from shared.problems import InvalidInput
from tests.support.databases import ON_SQLITE
from tests.support.small_services import SmallServices, serve
from tests.support.threads import background
from tests.support.work_site import QUICK, Site, SlowReport, work_until


@pytest.mark.slow
@ON_SQLITE
def test_a_cancelled_job_has_a_report_of_its_finished_images(site: Site) -> None:
    site.add_job(images=3)
    worker = site.worker()
    assert worker._work_once(first=False)
    with site.sessions.begin() as session:
        jobs.cancel(session, LOCAL_OWNER, "job")
    worker.step()
    assert site.state() == "cancelled"
    metrics = site.metrics()
    assert (metrics.sources, metrics.sources_cancelled, metrics.sources_failed) == (3, 2, 0)
    assert metrics.funnels[0].proposed == 2
    assert metrics.results[0].sources <= 1
    assert re.search(r"cancelled.*\b1 of \S+ 3\b", site.report())
    with site.sessions.begin() as session:
        jobs.retry(session, LOCAL_OWNER, "job")
    worker.step()
    assert (site.state(), site.metrics().sources_cancelled) == ("done", 0)


@pytest.mark.slow
def test_an_overtaken_analysis_leaves_the_newer_report(site: Site) -> None:
    site.add_job(images=2)
    slow = SlowReport(site)
    with background(site.worker().step, release=slow.go_on.set):
        assert slow.writing.wait(300)
        with site.sessions.begin() as session:
            session.get_one(Job, "job").task_description = "the newer task"
            leases.expire_leases(session)
            leases.sweep(session, max_lost_leases=20)
        site.worker().step()
        newer = site.report()
    assert "the newer task" in newer
    assert site.report() == newer
    assert site.metrics().made.task_description == "the newer task"
    assert site.state() == "done"
    assert len(list(site.store.iterate("reports/"))) == 1
    with site.sessions() as session:
        states = [event.payload["state"] for event in session.scalars(select(Event).where(Event.kind == "job"))]
    assert states == ["done"]


@ON_SQLITE
def test_a_report_needs_no_service_and_names_those_that_made_the_results(site: Site) -> None:
    site.add_job(images=2)
    worker, later = site.worker(), site.worker()
    site.small.revision = "1"
    assert worker._work_once(first=False)
    site.small.revision = "2"
    assert later._work_once(first=False)
    with serve(SmallServices()) as gone:
        pass
    site.url = gone
    site.worker(wait=0).step()
    assert site.state() == "done"
    metrics = site.metrics()
    assert [info.revision for info in metrics.made.services.values()] == ["2"]
    replaced = {info.revision for info in metrics.made.replaced_services}
    assert replaced == {"1"}


@pytest.mark.slow
@ON_SQLITE
def test_a_job_without_successful_images_fails_and_its_report_begins_with_the_reason(site: Site) -> None:
    site.add_job(images=2)
    site.small.troubles = [InvalidInput("this picture is refused")] * 6
    worker = site.worker()
    work_until(worker, lambda: site.state() != "running")
    with site.sessions() as session:
        job = session.get_one(Job, "job")
        events = [event.payload["state"] for event in session.scalars(select(Event).where(Event.kind == "job"))]
    assert (job.state, "this picture is refused" in job.failure, events) == ("failed", True, ["failed"])
    metrics = site.metrics()
    assert (metrics.sources, metrics.sources_failed) == (2, 2)
    assert [(failed.reason, failed.count) for failed in metrics.failure_reasons] == [("this picture is refused", 2)]
    page = site.report()
    assert page.index("this picture is refused") < page.index('aria-label="Verdict per model under test"')
    with site.sessions.begin() as session:
        jobs.retry(session, LOCAL_OWNER, "job")
    work_until(worker, lambda: site.state() != "running")
    assert (site.state(), site.metrics().failure_reasons) == ("done", [])


@pytest.mark.slow
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
