"""`/jobs/{job}/results`, `/events` and `/report`: filters, cursors, resumable streams."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select

from gateway.api.events import BATCH, POLL_SECONDS
from gateway.database.events import add_event
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Job, Report, SourceImage
from gateway.results.job_rows import load_rows
from gateway.results.measure import measure
from shared.schemas.reports import JobReport
from shared.schemas.results import JobResults
from tests.support.drawn_job import add_drawn_job, serve_drawn_job
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.work_site import wait_for

FOLLOWERS = 20


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A finished job `drawn` of 12 source images, with its report."""
    with serve_drawn_job(tmp_path_factory.mktemp("gateway"), per_class=4) as served:
        yield served


def rows(gateway: Gateway, filters: dict[str, str], limit: int = 200) -> list[dict[str, Any]]:
    """All pages."""
    views: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        reply = gateway.client.get("/jobs/drawn/results", params={"limit": str(limit), **filters, **cursor})
        assert reply.status_code == 200, reply.text
        page = reply.json()
        views += page["counterfactuals"]
        assert len(page["counterfactuals"]) <= limit
        if page["next"] is None:
            return views
        cursor = {"cursor": page["next"]}


def test_results_have_metrics_and_complete_counterfactuals(gateway: Gateway) -> None:
    page = gateway.client.get("/jobs/drawn/results").json()
    assert page["state"] == "done"
    assert {result["model"] for result in page["metrics"]["results"]} == {"night-bus", "sound"}
    first = next(row for row in page["counterfactuals"] if row["verdict"]["accepted"])
    assert first["changes"][0]["to_value"]
    assert first["caption"] != first["new_caption"]
    assert {opinion["model"] for opinion in first["predictions"]} == {"night-bus", "sound"}
    for opinion in first["predictions"]:
        assert None not in (opinion["original"], opinion["null_arm"], opinion["counterfactual"], opinion["flipped"])
    for digest in (first["source"]["image"], first["image"], first["null_image"]):
        assert gateway.client.get(f"/images/{digest}").headers["Content-Type"] == "image/png"
    detail = gateway.client.get(f"/jobs/drawn/results/{first['id']}").json()
    assert detail["lineage"] == {"evaluations": 40}
    assert gateway.client.get("/jobs/drawn/results/nothing").status_code == 404


@pytest.mark.slow
def test_pages_of_any_size_hold_every_counterfactual_once_in_order(gateway: Gateway) -> None:
    everything = rows(gateway, {})
    places = [(row["source"]["position"], row["method"], row["ordinal"]) for row in everything]
    assert places == sorted(set(places))
    for limit in (1, 7):
        assert [row["id"] for row in rows(gateway, {}, limit)] == [row["id"] for row in everything]


def values(row: dict[str, Any], key: str) -> list[str]:
    return [change[key] for change in row["changes"]]


def flips(row: dict[str, Any], *models: str) -> list[bool | None]:
    return [prediction["flipped"] for prediction in row["predictions"] if prediction["model"] in models]


@pytest.mark.parametrize(
    ("filters", "holds"),
    [
        ({"method": "dillema"}, lambda row: row["method"] == "dillema"),
        ({"method": "lance"}, lambda row: False),
        ({"factor": "weather"}, lambda row: values(row, "factor") == ["weather"]),
        ({"value": "night"}, lambda row: values(row, "to_value") == ["night"]),
        ({"from": "day"}, lambda row: values(row, "from_value") == ["day"]),
        ({"class": "bus"}, lambda row: row["source"]["ground_truth"] == "bus"),
        ({"verdict": "rejected"}, lambda row: not row["verdict"]["accepted"]),
        ({"check": "structure"}, lambda row: row["verdict"]["check"] == "structure"),
        ({"flipped": "true"}, lambda row: True in flips(row, "sound", "night-bus")),
        ({"flipped": "false", "model": "sound"}, lambda row: False in flips(row, "sound")),
        (
            {"value": "night", "class": "bus"},
            lambda row: row["source"]["ground_truth"] == "bus" and values(row, "to_value") == ["night"],
        ),
    ],
)
def test_filters_select_exactly_what_they_name(gateway: Gateway, filters: dict[str, str], holds: Any) -> None:
    assert rows(gateway, filters) == [row for row in rows(gateway, {}) if holds(row)]


def failed(row: dict[str, Any]) -> bool:
    truth = row["source"]["ground_truth"]
    return any(
        prediction["null_arm"]["predicted"] == truth != prediction["counterfactual"]["predicted"]
        for prediction in row["predictions"]
    )


def test_the_review_order_begins_with_failures_that_show_the_surest_fault(gateway: Gateway) -> None:
    metrics = gateway.client.get("/jobs/drawn/results").json()["metrics"]
    listed = rows(gateway, {"order": "review"})
    assert [row["id"] for row in listed] == metrics["review"]
    assert [row["id"] for row in rows(gateway, {"order": "review"}, limit=2)] == metrics["review"]
    assert all(row["verdict"]["accepted"] and failed(row) for row in listed)
    first = listed[0]
    assert (first["source"]["ground_truth"], first["changes"][0]["to_value"]) == ("bus", "night")
    strangers = [
        row for row in listed if (row["source"]["ground_truth"], values(row, "to_value")) != ("bus", ["night"])
    ]
    assert strangers, "other suspicions follow"
    cars = rows(gateway, {"order": "review", "class": "car"})
    assert cars == [row for row in listed if row["source"]["ground_truth"] == "car"]


def test_without_a_report_there_is_nothing_to_review_yet(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as gateway:
        add_drawn_job(gateway.context.sessions, gateway.context.store, per_class=1, state="running")
        page = gateway.client.get("/jobs/drawn/results?order=review").json()
        assert (page["counterfactuals"], page["next"]) == ([], None)


def test_wrong_filters_and_cursors_are_refused(gateway: Gateway) -> None:
    for query in (
        "flipped=maybe",
        "verdict=good",
        "limit=1000",
        "cursor=x",
        "cursor=WzEsMiwzXQ",
        "colour=red",
        "order=best",
    ):
        reply = gateway.client.get(f"/jobs/drawn/results?{query}")
        assert reply.status_code == 422, query
        assert query.partition("=")[0] in reply.json()["detail"]


def test_the_report_is_one_page(gateway: Gateway) -> None:
    reply = gateway.client.get("/jobs/drawn/report")
    assert reply.headers["Content-Type"].startswith("text/html")
    assert 'filename="contrafact-drawn.html"' in reply.headers["Content-Disposition"]
    assert "night-bus" in reply.text
    assert gateway.client.get("/jobs/drawn").json()["report"] == "/jobs/drawn/report"


def test_the_report_as_json_is_the_data_of_the_page(gateway: Gateway) -> None:
    reply = gateway.client.get("/jobs/drawn/report?format=json")
    assert reply.headers["Content-Type"] == "application/json"
    report = JobReport.model_validate_json(reply.content)
    assert report.results.model_dump(mode="json") == gateway.client.get("/jobs/drawn/results").json()["metrics"]
    assert [view.id for view in report.counterfactuals] == report.pictures.ids
    page = gateway.client.get("/jobs/drawn/report").text
    shown = set(re.findall(r'<article class="pair[^"]*" id="(?:hero-)?(\w+)"', page))
    assert shown == set(report.pictures.ids)
    first = report.counterfactuals[0]
    assert first.model_dump(mode="json", by_alias=True) in rows(gateway, {})


def test_the_report_as_markdown(gateway: Gateway) -> None:
    reply = gateway.client.get("/jobs/drawn/report", params={"format": "md"})
    assert reply.headers["Content-Type"].startswith("text/markdown")
    assert 'filename="contrafact-drawn.md"' in reply.headers["Content-Disposition"]
    assert reply.text.startswith("# classify the main thing in the picture\n")
    assert gateway.client.get("/jobs/drawn/report?format=pdf").status_code == 422


def test_a_page_of_an_older_version_has_no_data(gateway: Gateway) -> None:
    with reading(gateway.context.sessions) as session:
        key = session.get_one(Report, "drawn").object_key
    page = gateway.context.store.get(key)
    gateway.context.store.put(key, page.replace(b'id="data"', b'id="other"'))
    assert gateway.client.get("/jobs/drawn/report?format=json").status_code == 404
    assert gateway.client.get("/jobs/drawn/report?format=md").status_code == 200
    gateway.context.store.put(key, page)


def tell(sessions: Sessions, job: str, *numbers: int) -> None:
    for number in numbers:
        with sessions.begin() as session:
            add_event(session, job, "image", {"position": number})


def follow(
    gateway: Gateway,
    job: str,
    last: int = 0,
    stop_after: int | None = None,
    after: Mapping[int, Callable[[], None]] | None = None,
) -> list[tuple[int, str]]:
    """(id, kind) of the events of one connection, which is left after `stop_after` of them; `after` some, act."""
    headers = {"Last-Event-ID": str(last)} if last else {}
    events: list[tuple[int, str]] = []
    kind = ""
    with gateway.client.stream("GET", f"/jobs/{job}/events", headers=headers) as reply:
        assert reply.status_code == 200
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        for line in reply.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("id: "):
                events.append((int(line.removeprefix("id: ")), kind))
                if len(events) == stop_after:
                    return events
                if after and events[-1][0] in after:
                    after[events[-1][0]]()
    return events


@pytest.mark.slow
def test_followers_share_one_poller_and_receive_every_event(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as gateway, ThreadPoolExecutor(FOLLOWERS) as pool:
        sessions = gateway.context.sessions
        add_drawn_job(sessions, gateway.context.store, per_class=1, state="running")
        tell(sessions, "drawn", 1)
        polls = polls_of(sessions)
        following = [pool.submit(follow, gateway, "drawn") for _ in range(FOLLOWERS)]

        def seconds_of_four() -> float:
            before, began = polls(), time.monotonic()
            wait_for(lambda: polls() >= before + 4)
            return time.monotonic() - began

        try:
            wait_for(lambda: polls() >= FOLLOWERS)
            # One statement at a time, not one for each follower, once all have found the job.
            wait_for(lambda: seconds_of_four() > 3 * POLL_SECONDS)
        finally:
            with sessions.begin() as session:
                for number in range(BATCH + 10):  # more than the feed keeps
                    add_event(session, "drawn", "image", {"position": number})
                session.get_one(Job, "drawn").state = "done"
                add_event(session, "drawn", "job", {"state": "done"})
        for follower in following:
            assert [sequence for sequence, _ in follower.result()] == list(range(1, BATCH + 13))


@pytest.mark.slow
def test_images_of_one_sequence_count_as_one(tmp_path: Path) -> None:
    """Sixteen images of a class in eight sequences: too few for a test, though each image alone would do."""
    with serve_gateway(tmp_path) as gateway:
        sessions = gateway.context.sessions
        add_drawn_job(sessions, gateway.context.store)

        def results() -> JobResults:
            with reading(sessions) as session:
                return measure(load_rows(session, "drawn"))

        cells = results().results[0].cells
        assert {effect.standing for effect in cells} >= {"weakness", "nothing found"}
        with sessions.begin() as session:
            for image in session.scalars(select(SourceImage)):
                image.group_name = f"sequence {image.position // 6}"
        grouped = results()
        cells, power = grouped.results[0].cells, grouped.sensitivity
        assert {effect.standing for effect in cells} == {"too few images"}
        assert power is not None
        assert {(shown.sources, shown.groups, shown.drop) for shown in power.classes} == {(16, 8, None)}
        (bus,) = [cell for cell in cells if (cell.cell.label, cell.cell.value) == ("bus", "night")]
        assert (bus.sources, bus.groups) == (14, 8)
        assert "14 images in 8 groups" in bus.sentence


def polls_of(sessions: Sessions) -> Callable[[], int]:
    """A function that says how many statements have read jobs from now on."""
    statements: list[str] = []
    event.listen(sessions.kw["bind"], "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    return lambda: sum("FROM jobs" in statement for statement in statements)


def test_streams_of_a_deleted_job_end(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as gateway, ThreadPoolExecutor(1) as pool:
        add_drawn_job(gateway.context.sessions, gateway.context.store, per_class=1, state="running")
        tell(gateway.context.sessions, "drawn", 1)
        polls = polls_of(gateway.context.sessions)
        following = pool.submit(follow, gateway, "drawn")
        wait_for(lambda: polls() >= 2)  # its own and the feed's
        gateway.client.delete("/jobs/drawn")
        assert all(kind in ("image", "job") for _, kind in following.result(60))


def test_a_stream_can_be_resumed(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as gateway:
        sessions = gateway.context.sessions
        add_drawn_job(sessions, gateway.context.store, per_class=1)
        with sessions.begin() as session:
            session.get_one(Job, "drawn").state = "running"
        tell(sessions, "drawn", 1, 2, 3)
        assert follow(gateway, "drawn", stop_after=2) == [(1, "image"), (2, "image")]

        def go_on() -> None:
            tell(sessions, "drawn", 4)
            with sessions.begin() as session:
                session.get_one(Job, "drawn").state = "done"
                add_event(session, "drawn", "job", {"state": "done"})

        later = follow(gateway, "drawn", last=2, after={3: go_on})
        assert later == [(3, "image"), (4, "image"), (5, "job")], "and then it ends"
        assert gateway.client.get("/jobs/drawn/events", headers={"Last-Event-ID": "5"}).status_code == 204
        assert gateway.client.get("/jobs/drawn/events", headers={"Last-Event-ID": "x"}).status_code == 422
