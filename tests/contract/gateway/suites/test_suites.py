"""`/suites` over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select, update

from contrafact.client import Client
from contrafact.suite_commands import wait_for_run
from contrafact.tracked_job import tracked_data
from embedded.run import run_embedded
from gateway.auth.keys import create_key
from gateway.database.tables import Job, Owner, SourceImage
from shared.schemas.service import SERVICES
from shared.schemas.suites import RunView
from tests.support.gateway_under_test import Gateway, picture, serve_gateway
from tests.support.job_counts import store_counts
from tests.support.small_services import SmallServices, serve
from tests.support.suite_site import SOURCES, add_job, contrafact


def test_a_suite_is_shown_by_name_and_id(gateway: Gateway) -> None:
    by_name = gateway.client.get("/suites/street").json()
    assert by_name == gateway.client.get(f"/suites/{by_name['id']}").json()
    assert (by_name["made_from"], by_name["methods"]) == ("made", ["dillema"])
    assert (by_name["sources"], by_name["counterfactuals"], by_name["null_arms"]) == (80, 80, 80)
    assert [suite["name"] for suite in gateway.client.get("/suites").json()["suites"]] == ["street"]
    assert [job["id"] for job in gateway.client.get("/jobs").json()["jobs"]] == ["made"]
    assert gateway.client.get(f"/jobs/{by_name['id']}").status_code == 404


def test_results_name_the_drops(gateway: Gateway, runs: dict[str, str]) -> None:
    place = f"/suites/street/runs/{runs['m2']}/results"
    results = gateway.client.get(place, params={"baseline": runs["m1"]}).json()
    assert (results["model"], results["baseline_model"], results["relation"], results["left_out"]) == (
        "m2",
        "m1",
        "labelled",
        0,
    )
    cells = {
        (comparison["cell"] or {}).get("label", comparison["method"]): comparison for comparison in results["cells"]
    }
    bus = cells["bus"]
    assert (bus["judgement"], bus["sources"]) == ("drop", SOURCES)
    assert (bus["accuracy"]["value"], bus["against"]["value"]) == (0.2, 0.9)
    assert bus["accuracy"]["low"] < 0.2 < bus["accuracy"]["high"]
    assert bus["selected_interval"]["high"] < -0.05
    assert cells["car"]["difference"] == cells[""]["difference"] == 0
    assert results["breaches"][0] == bus["sentence"]
    alone = gateway.client.get(place).json()
    assert (alone["baseline"], len(alone["breaches"])) == (None, len(results["breaches"]))
    assert gateway.client.get(place, params={"baseline": runs["m1"], "max_drop": 95}).json()["breaches"] == []


def test_the_runs_of_a_suite_share_a_data_set(gateway: Gateway, runs: dict[str, str]) -> None:
    """As `contrafact track` names it."""
    client = Client(str(gateway.client.base_url))
    data = [tracked_data(run, "", client.counterfactuals(run, {"verdict": "counted"})) for run in runs.values()]
    client.close()
    assert data[0].digest == data[1].digest
    assert data[0].images == 2 * SOURCES


def test_what_failed_in_a_run_is_taken_up_again(gateway: Gateway, runs: dict[str, str]) -> None:
    with gateway.context.sessions.begin() as session:
        first = session.scalars(select(SourceImage).where(SourceImage.job_id == runs["m1"]).limit(1)).one()
        first.state, first.failure = "failed", "the model broke"
        store_counts(session, runs["m1"])
    reply = gateway.client.post("/suites/street/runs", json={"model": "m1"}).json()
    assert (reply["id"], reply["state"], reply["progress"]["images"]["waiting"]) == (runs["m1"], "running", 1)
    with gateway.context.sessions.begin() as session:
        session.execute(update(SourceImage).where(SourceImage.job_id == runs["m1"]).values(state="done"))
        session.execute(update(Job).where(Job.id == runs["m1"]).values(state="done"))


def test_a_run_that_did_not_answer_everything_is_no_pass(gateway: Gateway, runs: dict[str, str]) -> None:
    run = RunView.model_validate(gateway.client.get(f"/suites/street/runs/{runs['m2']}").json())
    failed = run.progress.images.model_copy(update={"failed": 1})
    progress = run.progress.model_copy(update={"images": failed})
    client = Client(str(gateway.client.base_url))
    for changed, sentence in (
        ({"state": "failed", "failure": "no evaluator"}, "is failed: no evaluator"),
        ({"state": "cancelled"}, "is cancelled"),
        ({"progress": progress}, "1 images of the run of m2 failed"),
    ):
        with pytest.raises(ValueError, match=sentence):
            wait_for_run(client, "street", run.model_copy(update=changed))
    client.close()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"job": "none", "name": "a"}, 404),
        ({"job": "made", "name": "street"}, 409),
        ({"job": "made", "name": "a b"}, 422),
        ({"job": "made", "name": "ab" * 16}, 422),
        ({"job": "made", "name": "a", "filters": {"value": "lava"}}, 422),
        ({"job": "made", "name": "a", "filters": {"verdict": "rejected"}}, 422),
        ({"job": "made"}, 422),
    ],
)
def test_refusals(gateway: Gateway, body: dict[str, object], status: int) -> None:
    reply = gateway.client.post("/suites", json=body)
    assert (reply.status_code, reply.headers["Content-Type"]) == (status, "application/problem+json"), reply.text
    assert [suite["name"] for suite in gateway.client.get("/suites").json()["suites"]] == ["street"]


def test_a_suite_is_deleted_with_its_runs(gateway: Gateway) -> None:
    assert gateway.client.post("/suites", json={"job": "made", "name": "gone", "filters": {"class": "bus"}}).is_success
    run = gateway.client.post("/suites/gone/runs", json={"model": "m1"}).json()["id"]
    assert gateway.client.delete("/suites/gone").status_code == 204
    for place in ("/suites/gone", f"/suites/gone/runs/{run}", f"/jobs/{run}"):
        assert gateway.client.get(place).status_code == 404


def test_keys_see_their_owners_suites_and_need_the_scope(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, authentication=True) as locked:
        add_job(locked)
        with locked.context.sessions.begin() as session:
            mine = create_key(session, "ann")
            looks = create_key(session, "ann", scopes=["review"])
            other = create_key(session, "bob")
            ann = session.scalars(select(Owner.id).where(Owner.name == "ann")).one()
            session.execute(update(Job).values(owner_id=ann))
        body = {"job": "made", "name": "street"}

        def ask(method: str, key: str, place: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return locked.client.request(
                method, place, headers=headers, json=body if method == "POST" else None
            ).status_code

        assert ask("POST", looks, "/suites") == 403
        assert ask("POST", other, "/suites") == 404
        assert ask("POST", mine, "/suites") == 201
        assert [ask("GET", key, "/suites/street") for key in (mine, looks, other)] == [200, 200, 404]
        content = "/suites/street/counterfactuals"
        assert [ask("GET", key, content) for key in (mine, looks, other)] == [200, 200, 404]
        assert [ask("DELETE", key, "/suites/street") for key in (looks, other, mine)] == [403, 404, 204]


def test_from_a_job_to_the_gate_in_one_process(tmp_path: Path) -> None:
    for n in range(2):
        (tmp_path / f"{n}.png").write_bytes(picture(n))
    with (
        serve(SmallServices()) as services,
        run_embedded(tmp_path / "data", service_urls=dict.fromkeys(SERVICES, services)) as system,
    ):
        url = system.base_url
        options = ["--task", "classify the vehicle", "--value", "weather=rain", "--model", "m1"]
        options += ["--set", "thresholds={}"]  # the shipped ones know nothing of what these services draw
        job = contrafact(url, "submit", tmp_path / "0.png", tmp_path / "1.png", *options, "--wait").stdout.split()[0]
        assert contrafact(url, "suites", "create", job, "--name", "small").stdout == "small\n"
        contrafact(url, "delete", job)
        gate = contrafact(url, "gate", "--suite", "small", "--model", "m2", "--baseline", "m1", code=2)
        assert gate.stdout == ""
        assert "nothing could be tested" in gate.stderr
        assert contrafact(url, "suites", "list").stdout.startswith("small  of job ")
        contrafact(url, "suites", "delete", "small")
        assert contrafact(url, "suites", "list").stdout == ""
