"""The results page draws the dose curve of a finding with its interval at each dose, beside what would settle it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from playwright.sync_api import Browser

from gateway.database.sessions import Sessions
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Image, Job, OwnedImage, Prediction, SourceImage
from gateway.methods import read_method
from gateway.report.build import build_report
from shared.media.images import from_array
from shared.media.storage import ObjectStore, image_key
from shared.schemas.diffusion import SEVERITIES
from tests.support.browser import needs_browser, open_page, overflow, violations
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.job_counts import store_counts
from tests.support.predictions import ranked
from tinyworld.objects.render import render
from tinyworld.objects.world import sample_scene

JOB, MODEL = "foggy", "fog-blind"
SOURCES = 20
WRONG = {1: 1, 2: 4, 3: 10, 4: 18, 5: 20}  # images on which the model fails, by severity


def add_foggy_job(sessions: Sessions, store: ObjectStore) -> None:
    """Images in fog of five severities, on which a planted model fails ever more often."""
    with sessions.begin() as session:
        methods = [read_method("corruptions", {"corruptions": ["fog"]})]
        session.add(Job(id=JOB, owner_id=LOCAL_OWNER, state="done", task_description="name the vehicle", profile="tiny",
                        classes=["bus", "car"], methods=methods, models=[MODEL]))  # fmt: skip
        session.flush()
        for position in range(SOURCES):
            image = from_array(render(sample_scene("demo", position)).image)
            store.put(image_key(image.digest), image.png)
            session.merge(Image(digest=image.digest, width=image.width, height=image.height, bytes=len(image.png)))
            session.flush()
            session.merge(OwnedImage(owner_id=LOCAL_OWNER, digest=image.digest))
            source = SourceImage(id=f"{JOB}-{position}", job_id=JOB, position=position, digest=image.digest,
                                 ground_truth="bus", state="done")  # fmt: skip
            rows = [_edit(source, severity) for severity in SEVERITIES]
            for added in ([source], rows, [_prediction(source, None), *(_prediction(source, row) for row in rows)]):
                session.add_all(added)
                session.flush()
        store_counts(session, JOB)
    build_report(sessions, store, JOB, [])


def _edit(source: SourceImage, severity: int) -> Counterfactual:
    value = f"fog {severity}"
    change = {"factor": "other", "from_phrase": "", "to_phrase": value, "from_value": "", "to_value": value}
    return Counterfactual(
        id=f"{source.id}-{severity}", job_id=JOB, source_image_id=source.id, position=source.position,
        method="corruptions", ordinal=severity, arm="edit", seed=0, changes=[change], factor="other", from_value="",
        to_value=value, image_digest=source.digest, accepted=True,
    )  # fmt: skip


def _prediction(source: SourceImage, row: Counterfactual | None) -> Prediction:
    right = row is None or source.position >= WRONG[row.ordinal]
    predicted = "bus" if right else "car"
    return Prediction(
        id=f"{source.id}-{row.ordinal if row else 'own'}", job_id=JOB, source_image_id=source.id,
        counterfactual_id=row.id if row else None, model=MODEL, predicted=predicted, probability=0.9,
        flipped=None if row is None else not right,
        **ranked(source.ground_truth, 1 if right else 2, 0.9 if right else 0.1, [(predicted, 0.9)]),
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_gateway(tmp_path_factory.mktemp("doses")) as gateway:
        add_foggy_job(gateway.context.sessions, gateway.context.store)
        yield gateway


@pytest.mark.slow
def test_the_curve_of_a_finding_has_a_point_and_an_interval_at_each_dose(site: Gateway) -> None:
    text = html.unescape(site.client.get(f"/jobs/{JOB}/view").text)
    finding = text.split('<article class="finding')[1]
    words = re.search(r'<svg class="forest dose"[^>]* aria-label="Effect by dose:([^"]+)"', finding)
    assert words
    drops = [100 * wrong // SOURCES for wrong in WRONG.values()]
    expected = ", ".join(f"−{drop} points at {severity}" for severity, drop in zip(SEVERITIES, drops, strict=True))
    assert words[1].strip() == expected
    chart = finding[finding.index(words[0]) :]
    chart = chart[: chart.index("</svg>")]
    points = [(float(x), float(y)) for x, y in re.findall(r'<circle class="mean" cx="([\d.]+)" cy="([\d.]+)"', chart)]
    assert [round(y) for _, y in points] == [round(60 + drop / 2) for drop in drops]
    assert all(left[0] < right[0] for left, right in pairwise(points))
    bars = re.findall(r'<line class="thick" x1="([\d.]+)" x2="[\d.]+" y1="([\d.-]+)" y2="([\d.]+)"', chart)
    assert len(bars) == len(SEVERITIES)
    for (x, y), bar in zip(points, bars, strict=True):
        assert float(bar[0]) == x
        assert float(bar[1]) <= y <= float(bar[2])
    assert "What would settle it" in finding
    (figures,) = site.client.get(f"/jobs/{JOB}/results?limit=1").json()["metrics"]["results"]
    curves = [effect["dose"] for effect in figures["cells"] if effect["dose"]]
    assert [round(100 * point["delta_accuracy"]) for point in curves[0]["points"]] == [-drop for drop in drops]


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
def test_the_curve_fits_and_is_in_sight(site: Gateway, browser: Browser, phone: bool) -> None:
    with open_page(browser, f"{str(site.client.base_url).rstrip('/')}/jobs/{JOB}/view", phone=phone) as page:
        chart = page.locator(".finding .dose").first
        assert chart.is_visible()
        box = chart.bounding_box()
        assert box
        assert box["width"] > 200
        assert box["x"] + box["width"] <= (page.viewport_size or {"width": 0})["width"]
        assert not violations(page)
        assert overflow(page) <= 0
