"""Reviews over HTTP and the command line: what is stored, for whom, what is refused, and pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contrafact.cli import app
from gateway.auth.keys import Scope, create_key
from tests.support.drawn_job import add_drawn_job, serve_drawn_job
from tests.support.gateway_under_test import Gateway, serve_gateway

VALID = {"verdict": "valid"}


@pytest.fixture
def gateway(database_url: str, tmp_path: Path) -> Iterator[Gateway]:
    """A finished job `drawn` of six source images, with its report; on SQLite, then on Postgres."""
    with serve_drawn_job(tmp_path, database_url, per_class=2) as served:
        yield served


def edits(gateway: Gateway, rendered: bool = True) -> list[str]:
    rows = gateway.client.get("/jobs/drawn/results?limit=200").json()["counterfactuals"]
    return [row["id"] for row in rows if (row["image"] is not None) is rendered]


def listed(gateway: Gateway, limit: int = 200) -> list[dict[str, Any]]:
    reviews: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = gateway.client.get("/jobs/drawn/reviews", params={"limit": str(limit), **cursor}).json()
        reviews += page["reviews"]
        assert len(page["reviews"]) <= limit
        if page["next"] is None:
            return reviews
        cursor = {"cursor": page["next"]}


def test_a_new_review_replaces_the_old(gateway: Gateway) -> None:
    address = f"/jobs/drawn/reviews/{edits(gateway)[0]}"
    review = {
        "verdict": "invalid",
        "edit_shown": False,
        "realism": 2,
        "failure": "changed_label",
        "note": "the bus is gone",
    }
    first = gateway.client.put(address, json=review)
    assert first.status_code == 200, first.text
    assert {name: first.json()[name] for name in review} == review
    assert first.json()["reviewer"] == "local"
    assert listed(gateway) == [first.json()]
    second = gateway.client.put(address, json=VALID).json()
    assert (second["verdict"], second["edit_shown"], second["realism"], second["note"]) == ("valid", None, None, "")
    assert listed(gateway) == [second]


def test_pages_of_any_size_hold_every_review_once_newest_first(gateway: Gateway) -> None:
    for edit in edits(gateway)[:7]:
        assert gateway.client.put(f"/jobs/drawn/reviews/{edit}", json=VALID).status_code == 200
    everything = listed(gateway)
    assert [view["counterfactual"] for view in everything] == edits(gateway)[:7][::-1]
    for limit in (1, 3):
        assert listed(gateway, limit) == everything
    assert "cursor" in gateway.client.get("/jobs/drawn/reviews?cursor=WyJ4IiwieCIsIngiXQ").json()["detail"]


def test_malformed_reviews_are_refused(gateway: Gateway) -> None:
    bodies: list[tuple[str, dict[str, object]]] = [
        ("verdict", {}),
        ("verdict", {"verdict": "good"}),
        ("realism", {**VALID, "realism": 6}),
        ("realism", {**VALID, "realism": 2.5}),
        ("failure", {**VALID, "failure": "ugly"}),
        ("note", {**VALID, "note": "x" * 1_001}),
        ("unknown field score", {**VALID, "score": 1}),
    ]
    for words, body in bodies:
        reply = gateway.client.put(f"/jobs/drawn/reviews/{edits(gateway)[0]}", json=body)
        assert reply.status_code == 422
        assert words in reply.json()["detail"]
    assert listed(gateway) == []


def test_only_rendered_edits_of_the_job_are_reviewed(gateway: Gateway) -> None:
    reply = gateway.client.put(f"/jobs/drawn/reviews/{edits(gateway, rendered=False)[0]}", json=VALID)
    assert reply.status_code == 422
    assert "class words" in reply.json()["detail"]
    add_drawn_job(gateway.context.sessions, gateway.context.store, "other", per_class=1)
    for path in (f"/jobs/other/reviews/{edits(gateway)[0]}", "/jobs/drawn/reviews/nothing", "/jobs/none/reviews/x"):
        assert gateway.client.put(path, json=VALID).status_code == 404
    assert gateway.client.get("/jobs/none/reviews").status_code == 404


def test_reviews_go_with_their_job(gateway: Gateway) -> None:
    gateway.client.put(f"/jobs/drawn/reviews/{edits(gateway)[0]}", json=VALID)
    assert gateway.client.delete("/jobs/drawn").status_code == 204
    assert gateway.client.get("/jobs/drawn/reviews").status_code == 404


def test_the_report_of_a_finished_job_is_rebuilt(gateway: Gateway) -> None:
    reply = gateway.client.post("/jobs/drawn/report")
    assert (reply.status_code, reply.json()["state"]) == (202, "running")
    assert gateway.wakes
    assert reply.json()["progress"]["images"]["waiting"] == 0
    again = gateway.client.post("/jobs/drawn/report")
    assert again.status_code == 409
    assert "the job is running" in again.json()["detail"]


def test_each_key_has_its_own_review_and_needs_the_scope(database_url: str, tmp_path: Path) -> None:
    with serve_gateway(tmp_path, database_url, authentication=True) as gateway:
        add_drawn_job(gateway.context.sessions, gateway.context.store, per_class=1)

        def headers(*scopes: Scope, owner: str = "local") -> dict[str, str]:
            with gateway.context.sessions.begin() as session:
                return {"Authorization": f"Bearer {create_key(session, owner, scopes)}"}

        ann, ben = headers("review"), headers("review")
        rows = gateway.client.get("/jobs/drawn/results", headers=ann).json()["counterfactuals"]
        address = f"/jobs/drawn/reviews/{next(row['id'] for row in rows if row['image'])}"
        for reviewer, verdict in ((ann, "unsure"), (ben, "invalid"), (ann, "valid")):
            assert gateway.client.put(address, json={"verdict": verdict}, headers=reviewer).status_code == 200
        reviews = gateway.client.get("/jobs/drawn/reviews", headers=ann).json()["reviews"]
        assert [view["verdict"] for view in reviews] == ["valid", "invalid"]
        assert {len(view["reviewer"]) for view in reviews} == {12}, "the id of the key, which tells nothing of it"
        refusal = gateway.client.put(address, json=VALID, headers=headers("submit"))
        assert refusal.status_code == 403
        assert "needs review" in refusal.json()["detail"]
        stranger = headers("review", owner="carl")
        assert gateway.client.put(address, json=VALID, headers=stranger).status_code == 404
        assert gateway.client.get("/jobs/drawn/reviews", headers=stranger).status_code == 404
        assert gateway.client.post("/jobs/drawn/report", headers=ann).status_code == 202


def test_the_command_line_writes_reviews_and_lists_them(gateway: Gateway) -> None:
    def contrafact(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments), env={"CONTRAFACT_URL": str(gateway.client.base_url)})
        assert result.exit_code == code, result.output
        return result.output

    edit = edits(gateway)[0]
    graded = ("--verdict", "valid", "--edit-not-shown", "--realism", "3", "--failure", "bias", "--note", "[still] day")
    assert f"{edit} is valid" in contrafact("review", "drawn", edit, *graded)
    (view,) = [json.loads(line) for line in contrafact("reviews", "drawn", "--json").splitlines()]
    assert (view["verdict"], view["edit_shown"], view["realism"], view["note"]) == ("valid", False, 3, "[still] day")
    assert view["failure"] == "bias"
    assert "[still] day" in contrafact("reviews", "drawn")
    assert "verdict" in contrafact("review", "drawn", edit, "--verdict", "good", code=2)
