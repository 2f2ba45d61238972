"""The review page of a running gateway: the order of images, what it hides, and what it sends."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from gateway.report.build import build_report
from tests.support.browser import needs_browser, open_page
from tests.support.drawn_job import add_drawn_job, serve_drawn_job


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A gateway with a finished job `drawn`, and one that is never reviewed."""
    with serve_drawn_job(tmp_path_factory.mktemp("review"), per_class=8) as gateway:
        add_drawn_job(gateway.context.sessions, gateway.context.store, "other", per_class=8)
        build_report(gateway.context.sessions, gateway.context.store, "other")
        yield gateway.client


def page(client: httpx.Client, path: str = "/jobs/drawn/review") -> str:
    reply = client.get(path)
    assert reply.status_code == 200, reply.text
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=|(?:src|href)=\"https?:", reply.text)
    return html.unescape(reply.text)


def counterfactual_on(text: str) -> str:
    form = re.search(r'<form id="review" action="/jobs/\w+/reviews/(\w+)"', text)
    assert form
    return form[1]


def test_it_shows_source_and_counterfactual_and_nothing_that_sways(client: httpx.Client) -> None:
    text = page(client, "/jobs/other/review")
    view = client.get(f"/jobs/other/results/{counterfactual_on(text)}").json()
    assert f"/images/{view['source']['image']}" in text
    assert f"/images/{view['image']}" in text
    assert f"Is <em>{view['source']['ground_truth']}</em> still right?" in text
    assert view["null_image"] not in text
    for hidden in ("accepted", "rejected", "night-bus", "flipped", "predicted", "structure"):
        assert hidden not in text.partition("<main")[2]
    for address in set(re.findall(r'(?:src|<link[^>]* href)="([^"]+)"', text)):
        assert client.get(address).status_code == 200, address
    assert page(client, "/jobs/other/review") == text, "until something is said of it"
    assert 'href="/jobs/other/review">' in page(client, "/jobs/other/view")


@pytest.mark.slow
def test_failures_and_random_samples_of_both_verdicts_come_mixed_each_once(client: httpx.Client) -> None:
    metrics = client.get("/jobs/drawn/results?limit=1").json()["metrics"]
    rejected = client.get("/jobs/drawn/results?verdict=rejected&limit=200").json()["counterfactuals"]
    rejected_ids = {row["id"] for row in rejected if row["image"]}
    names: list[str] = []
    missing = []
    for _ in range(60):
        text = page(client)
        names.append(counterfactual_on(text))
        remaining = re.search(r"(\d+) more randomly|large enough()", text)
        assert remaining is not None
        missing.append(int(remaining[1] or 0))
        review = {"verdict": "valid", "realism": 5, "failure": "poor_image", "note": "as it was"}
        assert client.put(f"/jobs/drawn/reviews/{names[-1]}", json=review).status_code == 200
    assert len(set(names)) == 60
    kinds = Counter("rejected" if name in rejected_ids else "accepted" for name in names)
    assert kinds["rejected"] == min(len(rejected_ids), max(10, -(-len(rejected_ids) // 10)))
    failures = [name for name in names if name in metrics["review"]]
    assert failures[:5] == [name for name in metrics["review"] if name in set(names)][:5]
    assert missing[0] == 30
    assert missing[-1] == 0
    assert sorted(missing, reverse=True) == missing
    again = page(client, f"/jobs/drawn/review?counterfactual={names[-1]}")
    assert counterfactual_on(again) == names[-1]
    assert 'value="as it was"' in again
    assert re.search(r'name="realism" value="5" data-key="5" checked', again)
    assert re.search(r'name="failure" value="poor_image" data-key="p" checked', again)
    assert re.search(r'<button name="verdict" value="valid" data-key="v" aria-pressed="true">', again)
    assert f'id="before" rel="prev" href="/jobs/drawn/review?counterfactual={names[-1]}"' in page(client)
    assert 'data-report="/jobs/drawn/report"' in page(client)


@pytest.fixture(scope="module")
def finding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A gateway with a finished job `drawn` that has findings."""
    with serve_drawn_job(tmp_path_factory.mktemp("finding"), per_class=14) as gateway:
        yield gateway.client


def test_the_images_of_a_finding_are_judged_together_with_their_arms(finding: httpx.Client) -> None:
    """Reviewers saw the edit alone, so a finding that a lost null arm made was found valid."""
    metrics = finding.get("/jobs/drawn/results?limit=1").json()["metrics"]
    first = metrics["review"][: metrics["review_first"]]
    assert first
    text = page(finding, "/jobs/drawn/review")
    assert counterfactual_on(text) == first[0]
    view = finding.get(f"/jobs/drawn/results/{first[0]}").json()
    for image in (view["source"]["image"], view["null_image"], view["image"]):
        assert f"/images/{image}" in text
    assert f"Do both renderings still show <em>{view['source']['ground_truth']}</em>?" in text
    assert "Both right" in text
    assert 'name="arm_shown"' in text
    assert "Still right" not in text
    others = finding.get("/jobs/drawn/results?limit=200").json()["counterfactuals"]
    other = next(row for row in others if row["id"] not in first and row["image"] and row["null_image"])
    alone = (
        f"/jobs/drawn/review?counterfactual={other['id']}",
        f"/jobs/drawn/review?sample=calibration&counterfactual={first[0]}",
    )
    for path, row in zip(alone, (other, view), strict=True):
        text = page(finding, path)
        assert f"/images/{row['image']}" in text
        assert f"/images/{row['null_image']}" not in text
        assert "Still right" in text
        assert 'name="arm_shown"' not in text


def test_an_image_of_a_finding_that_was_seen_alone_is_offered_again_with_its_arm(finding: httpx.Client) -> None:
    metrics = finding.get("/jobs/drawn/results?limit=1").json()["metrics"]
    first, second = metrics["review"][:2]
    alone = finding.put(f"/jobs/drawn/reviews/{first}", json={"verdict": "valid"})
    assert alone.json()["arm_shown"] is False
    assert counterfactual_on(page(finding)) == first
    finding.put(f"/jobs/drawn/reviews/{first}", json={"verdict": "valid", "arm_shown": True})
    assert counterfactual_on(page(finding)) == second


def test_unknown_ids_are_not_found(client: httpx.Client) -> None:
    for path in ("/jobs/none/review", "/jobs/drawn/review?counterfactual=none"):
        assert client.get(path).status_code == 404
    assert client.get("/jobs/drawn/review?at=1").status_code == 422


@pytest.mark.slow
@needs_browser
def test_the_last_picture_of_the_findings_builds_the_report_again_and_they_stand(
    tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> None:
    with serve_drawn_job(tmp_path_factory.mktemp("stands"), per_class=14) as gateway:
        metrics = gateway.client.get("/jobs/drawn/results?limit=1").json()["metrics"]
        (finding,) = (effect for effect in metrics["results"][0]["cells"] if effect["changed"])
        assert finding["among_valid"] is None
        assert finding["reviews_needed"] == len(finding["changed"]["sample"]) == metrics["review_first"]
        with open_page(browser, f"{str(gateway.client.base_url).rstrip('/')}/jobs/drawn/review") as shown:
            for left in range(metrics["review_first"], 0, -1):
                shown.get_by_text(f"{left} more picture").wait_for()
                shown.wait_for_load_state()  # its script answers keys then
                shown.keyboard.press("v")
            shown.wait_for_url("**/jobs/drawn/view")
        build_report(gateway.context.sessions, gateway.context.store, "drawn")
        metrics = gateway.client.get("/jobs/drawn/results?limit=1").json()["metrics"]
        (finding,) = (effect for effect in metrics["results"][0]["cells"] if effect["changed"])
        assert finding["among_valid"]["stands"]
