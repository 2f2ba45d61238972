"""The page of a running job: its pace, its stages, and the newest counterfactuals as they come."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import select

from gateway.database.sessions import reading
from gateway.database.tables import Job, SourceImage
from gateway.jobs import jobs
from gateway.jobs.pace import pace_of
from tests.support.browser import needs_browser, open_page, violations
from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import Gateway, serve_gateway

WAITING = 12


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a running job: six images finished in the last five minutes, and 12 left."""
    with serve_gateway(tmp_path_factory.mktemp("running")) as gateway:
        sessions = gateway.context.sessions
        add_drawn_job(sessions, gateway.context.store, "running", per_class=2, state="running")
        with sessions.begin() as session:
            job = session.get_one(Job, "running")
            job.counts = {**job.counts, "images": job.counts["images"] + WAITING}
            rows = session.scalars(select(SourceImage).where(SourceImage.job_id == "running")).all()
            now = datetime.now(UTC)
            for row in rows:
                row.updated_at = now - timedelta(minutes=5 - row.position)
        yield gateway


def test_the_time_left_follows_from_the_last_images(site: Gateway) -> None:
    with reading(site.context.sessions) as session:
        pace = pace_of(session, jobs.show(session, "local", "running"))
    assert pace is not None
    assert pace.images_per_minute == pytest.approx(1, rel=0.1)
    assert pace.left == pytest.approx(timedelta(minutes=WAITING), rel=0.1)
    text = html.unescape(site.client.get("/jobs/running/progress").text)
    assert re.search(rf"\b1\.0 images.*\b{WAITING} min", text)


def test_the_newest_counterfactuals_come_first(site: Gateway) -> None:
    text = site.client.get("/jobs/running/newest").text
    shown = re.findall(r'href="/jobs/running/pairs/([^"]+)"', text)
    rows = site.client.get("/jobs/running/results?verdict=accepted&limit=200").json()["counterfactuals"]
    position = {row["id"]: row["source"]["position"] for row in rows}
    assert 4 <= len(shown) <= 6
    positions = [position[name] for name in shown]
    assert positions == sorted(positions, reverse=True)
    assert positions[0] == max(position.values())


@pytest.mark.slow
@needs_browser
def test_the_page_shows_them_by_itself(site: Gateway, browser: Browser) -> None:
    address = f"{str(site.client.base_url).rstrip('/')}/jobs/running/view"
    with open_page(browser, address, phone=True) as page:
        expect(page.locator("#newest .pair").first).to_be_visible()
        expect(page.locator("#progress")).to_contain_text("min left")
        assert not violations(page)
