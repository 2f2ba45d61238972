"""The scale benchmark at a small size, with real processes and models that only wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from research.scale.__main__ import SPEC, intake, reading_costs, stored_rows, work
from research.scale.copied_rows import make_large_job
from research.scale.deletion import make_large, measure
from research.scale.site import Pace, running
from shared.schemas.service import ServiceName
from tests.support.deployment import open_directory

IMAGES, ROWS, UNWORKED = 60, 3_060, 30


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_directory() as path:
        yield path


@pytest.mark.slow
def test_a_large_job_costs_an_image_what_a_small_one_does(folder: Path) -> None:
    paces: dict[ServiceName, Pace] = {"diffusion_service": Pace(seconds=0.05, replicas=2)}
    with running(folder, paces, workers=2, in_flight=4) as site:
        intake(site, IMAGES)
        job = str(stored_rows(site)["job"])
        small = work(site, job, IMAGES)
        assert small["report"]["state"] == "done"
        assert small["redis"]["messages"] <= 20
        first = reading_costs(site, job)
        filled = make_large_job(site, SPEC, job, IMAGES, ROWS, UNWORKED)
        large = work(site, filled, ROWS, first=ROWS - UNWORKED)
        assert large["report"]["state"] == "done"
        assert large["worked_images"] == UNWORKED
        pages = reading_costs(site, filled)
    # A page touches as much of the database at the end of a large job as at the beginning, and as that of a small one.
    assert pages["last_page"]["blocks"] < 2 * max(first["first_page"]["blocks"], pages["first_page"]["blocks"])
    for counted in large["statements_per_image"].values():
        assert counted["claim_blocks"] < 200


@pytest.mark.slow
def test_a_large_job_is_deleted_while_another_one_runs(folder: Path) -> None:
    with running(folder, {}, workers=2, in_flight=4) as site:
        intake(site, IMAGES)
        small = str(stored_rows(site)["job"])
        work(site, small, IMAGES)
        figures = measure(site, small, make_large(site, small, ROWS, IMAGES), 400, undisturbed=1.0)
    assert figures["rows_before"]["source_images"] == ROWS
    assert figures["page_of_deleted_job"] == 404
    assert set(figures["rows_after"].values()) == {0}
    assert figures["during"]["images"] > 0, "the other job went on"
    assert figures["during"]["failed_requests"] == 0
