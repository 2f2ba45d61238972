"""A class name of 180 characters without a space: no page gets wider than its window."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from sqlalchemy import update

from gateway.database.tables import Job, Prediction, SourceImage
from gateway.report.build import build_report
from tests.support.browser import needs_browser, open_page, overflow
from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.job_counts import store_counts
from tests.support.pages import home_of

pytestmark = needs_browser
LONG = "t" * 180
PAGES = ("view", "gallery", "report")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a finished job `drawn`, whose buses have the long name."""
    with serve_gateway(tmp_path_factory.mktemp("long")) as served:
        add_drawn_job(served.context.sessions, served.context.store, per_class=12)
        with served.context.sessions.begin() as session:
            job = session.get_one(Job, "drawn")
            job.classes = [LONG if name == "bus" else name for name in job.classes or []]
            session.execute(update(SourceImage).where(SourceImage.ground_truth == "bus").values(ground_truth=LONG))
            session.execute(update(Prediction).where(Prediction.predicted == "bus").values(predicted=LONG))
            store_counts(session, "drawn")
        build_report(served.context.sessions, served.context.store, "drawn")
        yield served


@pytest.mark.slow
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
def test_pages_of_a_job_fit(gateway: Gateway, browser: Browser, phone: bool) -> None:
    for name in PAGES:
        with open_page(browser, f"{home_of(gateway)}jobs/drawn/{name}", phone=phone) as page:
            assert LONG in page.content(), name
            assert overflow(page) <= 0, name
