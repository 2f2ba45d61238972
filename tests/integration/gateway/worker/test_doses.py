"""A job of doses through the worker: rows and curve, a killed worker, a cancelled job; the services are small."""

from __future__ import annotations

import pytest

from gateway.database.tables import LOCAL_OWNER, Job
from gateway.jobs import jobs
from gateway.methods import read_method
from gateway.queue import leases
from shared.schemas.base import JsonObject
from shared.schemas.effects import DoseCurve
from tests.support.rows import let_time_pass
from tests.support.small_services import CAPTION
from tests.support.work_site import Site, wait_for

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
IMAGES = 13


def add_job_of_doses(site: Site, job: str = "job") -> None:
    """Cars; each has an edit to rain, at doses of half, one and one and a half."""
    site.add_job(job, images=IMAGES, models=("m1",))
    edit: JsonObject = {
        "factor": "weather",
        "from_phrase": "sunny",
        "to_phrase": "rainy",
        "to_value": "rain",
        "caption": CAPTION,
        "new_caption": CAPTION.replace("sunny", "rainy"),
        "seed": 7,
    }
    edits = [{**edit, "source": image.digest} for image in site.images(job)]
    parameters: JsonObject = {
        "method": "dillema",
        "parameter": "guidance",
        "doses": [0.5, 1, 1.5],
        "controlled": {"steps": 2, "guidance": 6},
    }
    with site.sessions.begin() as session:
        session.get_one(Job, job).methods = [read_method("doses", {**parameters, "edits": [*edits]})]


def work_until_over(site: Site, job: str = "job") -> None:
    worker = site.worker()
    wait_for(lambda: worker.step() or site.state(job) != "running")  # type: ignore[func-returns-value]


def curve_of(site: Site, job: str = "job") -> DoseCurve:
    (curve,) = [cell.dose for figures in site.metrics(job).results for cell in figures.cells if cell.dose]
    return curve


@pytest.mark.slow
@ON_SQLITE
def test_a_job_of_doses_goes_on_after_a_killed_worker_and_gives_the_same(site: Site) -> None:
    add_job_of_doses(site)
    work_until_over(site)
    counterfactuals, _ = site.results()
    assert len(counterfactuals) == IMAGES * 7, "three doses with a null arm each, and the edit undone"
    curve = curve_of(site)
    assert (curve.sources, [point.value for point in curve.points]) == (IMAGES, [3, 6, 9])
    assert curve.trend_interval is not None
    assert curve.undone is not None
    assert curve.undone.sources == IMAGES
    assert 'id="doses"' in site.report()
    rendered = site.small.calls["render"]

    add_job_of_doses(site, "again")
    assert site.worker()._work_once(first=False)
    with site.sessions.begin() as session:  # leased by a worker that dies
        for _ in range(3):
            assert leases.claim(session, 60)
    let_time_pass(site.sessions, 120)
    with site.sessions.begin() as session:
        leases.sweep(session, 20)
    work_until_over(site, "again")
    assert site.results("again") == site.results()
    assert curve_of(site, "again").points == curve.points
    assert site.small.calls["render"] == rendered, "the services' replies were recorded"


@pytest.mark.slow
@ON_SQLITE
def test_a_cancelled_job_of_doses_has_the_curve_of_its_finished_images(site: Site) -> None:
    add_job_of_doses(site)
    worker = site.worker()
    for _ in range(2):
        assert worker._work_once(first=False)
    with site.sessions.begin() as session:
        jobs.cancel(session, LOCAL_OWNER, "job")
    worker.step()
    assert site.state() == "cancelled"
    assert site.metrics().sources_cancelled == IMAGES - 2
    curve = curve_of(site)
    assert (curve.sources, curve.verdict, curve.trend_interval) == (2, "too few images", None)
    with site.sessions.begin() as session:
        jobs.retry(session, LOCAL_OWNER, "job")
    work_until_over(site)
    assert (site.state(), curve_of(site).sources) == ("done", IMAGES)
