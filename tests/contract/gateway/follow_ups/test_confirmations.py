"""`POST /jobs/{job}/confirmation`: an unrelated editor tests a job's findings again; the findings say how it went."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from gateway.database.sessions import Sessions
from gateway.database.tables import Counterfactual, Job, Prediction, Report, SourceImage
from gateway.follow_ups import confirmation
from gateway.methods import METHODS, read_method, shifts
from gateway.operations.deletion import mark_deleted
from gateway.report.build import build_report
from gateway.results.cells import with_cells
from gateway.results.confirmation import why_not_tested
from shared.schemas.designs import LONGEST_VALUE
from shared.schemas.effects import Cell, CellEffect, Confirmation, Interval
from shared.schemas.results import ModelResults
from tests.support.drawn_job import add_second_changes
from tests.support.gateway_under_test import Gateway
from tests.support.predictions import ranked


def finish(
    sessions: Sessions,
    job: str,
    value: str,
    images: int,
    right: bool,
    method: str = "shifts",
    *,
    arms_right: bool = True,
) -> None:
    """Give the confirming job an edit and a null arm of its first images; `m1` is `right` on the edits."""
    edits: list[dict[str, Any]] = []
    predictions: list[dict[str, Any]] = []
    with sessions.begin() as session:
        sources = session.scalars(select(SourceImage).where(SourceImage.job_id == job)).all()
        for source in sources:
            common = {"job_id": job, "source_image_id": source.id}
            truth = source.ground_truth
            shown = {"model": "m1", "probability": 0.9}
            opinions: list[tuple[str | None, bool]] = [(None, True)]
            if source.position < images:
                opinions += [(f"{source.id}-0", right), (f"{source.id}-1", arms_right)]
                change = {"factor": "weather", "from_value": "day", "to_value": value}
                row = {"position": source.position, "method": method, "seed": 0, "caption": "", "lineage": {}}
                arm = {**common, **row, "image_digest": source.digest, "accepted": True, "null_check": ""}
                changes = [{**change, "from_phrase": "day", "to_phrase": value}]
                edits.append(
                    {**arm, "id": f"{source.id}-0", "ordinal": 0, "arm": "edit", "null_ordinal": 1, "changes": changes}
                )
                edits.append(
                    {**arm, "id": f"{source.id}-1", "ordinal": 1, "arm": "null", "null_ordinal": None, "changes": []}
                )
            for name, correct in opinions:
                values = {"predicted": truth if correct else "boat", **ranked(truth, 1 if correct else 2, 0.9)}
                key = f"{name or source.id}-m1"
                predictions.append({**common, **shown, **values, "id": key, "counterfactual_id": name})
        session.execute(insert(Counterfactual), edits)
        session.execute(insert(Prediction), predictions)
        session.execute(update(SourceImage).where(SourceImage.job_id == job).values(state="done"))
        session.execute(update(Job).where(Job.id == job).values(state="done"))


@pytest.mark.parametrize(
    ("images", "right", "verdict"),
    [(20, False, "confirmed"), (20, True, "not confirmed"), (5, False, "too few images")],
)
def test_a_weakness_is_tested_again_and_says_how_it_went(
    gateway: Gateway, images: int, right: bool, verdict: str
) -> None:
    reply = gateway.client.post("/jobs/drawn/confirmation", json={"confirm_with": "shifts"})
    assert reply.status_code == 202, reply.text
    job = reply.json()
    (method,) = job["methods"]
    phrases = [(shift["phrase"], shift["value"]) for shift in method["parameters"]["shifts"]]
    assert (method["name"], phrases) == ("shifts", [("night", "night")])
    assert job["models"] == ["m1", "m2"]
    assert 12 <= job["images"] == job["labelled"] <= 14
    assert gateway.client.post("/jobs/drawn/confirmation", json={}).json()["id"] == job["id"], "started once"
    sessions, store = gateway.context.sessions, gateway.context.store
    finish(sessions, job["id"], "night", images, right)
    build_report(sessions, store, job["id"], [])
    results = build_report(sessions, store, "drawn", [])
    findings = [effect for figures in results.results for effect in figures.findings if figures.model == "m1"]
    at_night = next(effect for effect in findings if effect.cell.value == "night")
    assert isinstance(at_night.confirmation, Confirmation)
    assert (at_night.confirmation.verdict, at_night.confirmation.job) == (verdict, job["id"])
    assert at_night.confirmation.sources == min(images, job["images"])
    assert "`shifts`" in at_night.details


@pytest.mark.slow
@pytest.mark.parametrize(("right", "verdict"), [(True, "confirmed"), (False, "not confirmed")])
def test_an_improvement_is_confirmed_by_a_gain(gateway: Gateway, right: bool, verdict: str) -> None:
    """Only weaknesses were tested again, so a generator's marks that help the model were never refuted."""
    sessions, store = gateway.context.sessions, gateway.context.store
    with sessions.begin() as session:
        of_edits = select(Prediction, Counterfactual.arm).join(
            Counterfactual, Prediction.counterfactual_id == Counterfactual.id
        )
        sources = of_edits.join(SourceImage, Counterfactual.source_image_id == SourceImage.id)
        for prediction, arm in session.execute(
            sources.where(Prediction.model == "m1", SourceImage.ground_truth == "bus")
        ):
            prediction.predicted, rank = ("bus", 1) if arm == "edit" else ("boat", 2)
            prediction.scores = {"bus": float(rank == 1)}
            prediction.detail = {**prediction.detail, "rank": rank}
    before = build_report(sessions, store, "drawn", [])
    gains = {effect.cell.value for row in before.results if row.model == "m1" for effect in row.findings}
    assert "night" in gains
    reply = gateway.client.post("/jobs/drawn/confirmation", json={"confirm_with": "shifts"})
    assert reply.status_code == 202, reply.text
    job = reply.json()
    assert "night" in [shift["value"] for shift in job["methods"][0]["parameters"]["shifts"]]
    finish(sessions, job["id"], "night", 20, right, arms_right=False)
    build_report(sessions, store, job["id"], [])
    results = build_report(sessions, store, "drawn", [])
    findings = [effect for figures in results.results for effect in figures.findings if figures.model == "m1"]
    at_night = next(effect for effect in findings if (effect.cell.value, effect.cell.direction) == ("night", "to"))
    assert at_night.standing == "improvement"
    assert at_night.confirmation is not None
    assert (at_night.confirmation.verdict, at_night.confirmation.job) == (verdict, job["id"])


def add_dusk(sessions: Sessions) -> None:
    """Rain and snow on buses come from dusk, and `m1` fails on them: a finding beside that of night."""
    with sessions.begin() as session:
        buses = select(Counterfactual).join(SourceImage).where(SourceImage.ground_truth == "bus")
        for edit in session.scalars(buses.where(Counterfactual.to_value.in_(("rain", "snow")))):
            edit.from_value, (change,) = "dusk", edit.changes
            edit.changes = [{**change, "from_value": "dusk", "from_phrase": "at dusk"}]
            its = update(Prediction).where(Prediction.counterfactual_id == edit.id, Prediction.model == "m1")
            session.execute(its.values(predicted="boat", **ranked("bus", 2, 0.1)))


@pytest.mark.slow
def test_findings_that_are_not_tested_again_are_named_with_the_reason(gateway: Gateway) -> None:
    """`shifts` renders changes to night; other edits change the weather from dusk."""
    sessions, store = gateway.context.sessions, gateway.context.store
    add_dusk(sessions)
    build_report(sessions, store, "drawn", [])
    job = gateway.client.post("/jobs/drawn/confirmation", json={}).json()
    reasons = {
        (row["method"], row["cell"]["value"], row["cell"]["direction"]): row["reason"] for row in job["not_tested"]
    }
    before = build_report(sessions, store, "drawn", [])
    weaknesses = [effect for figures in before.results for effect in figures.findings]
    assert {(effect.cell.value, effect.cell.direction) for effect in weaknesses} == {("night", "to"), ("dusk", "from")}
    assert set(reasons) == {("dillema", "dusk", "from")}
    assert all("dusk" in reason for reason in reasons.values())
    finish(sessions, job["id"], "night", 20, right=False)
    build_report(sessions, store, job["id"], [])
    results = build_report(sessions, store, "drawn", [])
    findings = [effect for figures in results.results for effect in figures.findings if figures.model == "m1"]
    for effect in findings:
        assert effect.confirmation is not None
        assert (effect.confirmation.verdict == "not tested again") == (effect.cell.direction == "from")
        assert bool(effect.confirmation.reason) == (effect.cell.direction == "from")
        assert effect.confirmation.reason in effect.details


def test_a_change_that_the_other_editor_cannot_make_is_not_tested_again() -> None:
    cell = Cell(label="bus", factor="noise", value="gaussian noise 3", direction="to")
    assert "noise" in why_not_tested("lance", cell, "dillema")
    weather = cell.model_copy(update={"factor": "weather"})
    assert not why_not_tested("lance", weather, "dillema")
    assert "gaussian noise 3" in why_not_tested("lance", weather.model_copy(update={"direction": "from"}), "dillema")
    long = weather.model_copy(update={"value": "a storm " * 6})
    assert str(LONGEST_VALUE) in why_not_tested("lance", long, "dillema")
    assert not why_not_tested("dillema", long, "shifts")


@pytest.mark.slow
def test_a_weakness_of_edits_with_several_changes_is_tested_with_its_own_change(gateway: Gateway) -> None:
    add_second_changes(gateway.context.sessions, gateway.context.store)
    reply = gateway.client.post("/jobs/drawn/confirmation", json={"confirm_with": "shifts"})
    assert reply.status_code == 202, reply.text
    (shift,) = reply.json()["methods"][0]["parameters"]["shifts"]
    assert (shift["phrase"], shift["factor"], shift["value"]) == ("night", "weather", "night")
    assert "red" not in shift["replaces"], "the phrase of the other change"
    assert 12 <= reply.json()["images"] <= 14


def test_a_finding_on_few_images_is_tested_on_others_of_its_class_too(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks refuse edits of both editors: 8 of the 16 images of a finding were left, too few for a verdict."""
    monkeypatch.setattr(confirmation, "LEAST_IMAGES", 0)
    of_cell = gateway.client.post("/jobs/drawn/confirmation", json={}).json()
    monkeypatch.undo()
    filled = gateway.client.post("/jobs/drawn/confirmation", json={}).json()
    with gateway.context.sessions() as session:
        of_class = select(SourceImage).where(SourceImage.job_id == "drawn", SourceImage.ground_truth == "bus")
        buses = {source.digest for source in session.scalars(of_class)}
        chosen = select(SourceImage).where(SourceImage.job_id == filled["id"])
        assert {source.digest for source in session.scalars(chosen)} == buses
    assert of_cell["images"] < filled["images"] == len(buses) <= confirmation.LEAST_IMAGES


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["phrases", "images"])
def test_findings_that_have_changed_are_tested_by_another_job(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.setattr(confirmation, "LEAST_IMAGES", 0)  # the images of the cell alone
    first = gateway.client.post("/jobs/drawn/confirmation", json={}).json()
    with gateway.context.sessions.begin() as session:
        edits = (
            select(Counterfactual)
            .join(SourceImage, Counterfactual.source_image_id == SourceImage.id)
            .where(Counterfactual.to_value == "night", SourceImage.ground_truth == "bus")
        )
        if changed == "images":
            refused = session.scalars(edits.where(Counterfactual.accepted.is_(False))).first()
            assert refused is not None, "the checks refuse every few"
            refused.accepted, refused.check = True, ""
        else:
            for edit in session.scalars(edits):
                edit.changes = [{**edit.changes[0], "to_phrase": "after dark"}]
    build_report(gateway.context.sessions, gateway.context.store, "drawn", [])
    reply = gateway.client.post("/jobs/drawn/confirmation", json={})
    assert reply.status_code == 202, reply.text
    second = reply.json()
    assert second["id"] != first["id"]
    assert second["images"] == first["images"] + (changed == "images")
    assert gateway.client.post("/jobs/drawn/confirmation", json={}).json()["id"] == second["id"], "started once"


@pytest.mark.slow
def test_a_deleted_job_confirms_nothing(gateway: Gateway) -> None:
    job = gateway.client.post("/jobs/drawn/confirmation", json={}).json()["id"]
    sessions, store = gateway.context.sessions, gateway.context.store
    finish(sessions, job, "night", 20, right=False)
    build_report(sessions, store, job, [])
    with sessions.begin() as session:
        mark_deleted(session, job)
    build_report(sessions, store, job, [])  # by an analysis that ends after the deletion
    results = build_report(sessions, store, "drawn", [])
    assert all(effect.confirmation is None for figures in results.results for effect in figures.findings)


def weaken(sessions: Sessions, model: str, value: str) -> None:
    """Make a cell of a model a weakness that just reaches the border, and list that model first in the report."""
    interval = Interval(low=-0.4, high=-0.06, level=0.95, kind="betting")

    def change(figures: ModelResults, effect: CellEffect) -> CellEffect:
        if (figures.model, effect.cell.label, effect.cell.value) != (model, "bus", value):
            return effect
        return effect.model_copy(update={"standing": "weakness", "selected_interval": interval})

    with sessions.begin() as session:
        report = session.get_one(Report, "drawn")
        figures = sorted(with_cells(report.results.results, change), key=lambda row: row.model != model)
        report.metrics = report.results.model_copy(update={"results": figures}).model_dump(mode="json")


def test_the_strongest_findings_of_all_models_come_first(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first model's weak finding once took the place of a second model's strong one."""
    weaken(gateway.context.sessions, "m2", "snow")
    one_change = replace(METHODS["shifts"], confirming=replace(shifts.CONFIRMING, most=1))
    monkeypatch.setitem(METHODS, "shifts", one_change)
    job = gateway.client.post("/jobs/drawn/confirmation", json={}).json()
    assert [shift["value"] for shift in job["methods"][0]["parameters"]["shifts"]] == ["night"]
    (left_out,) = (row for row in job["not_tested"] if row["cell"]["direction"] == "to")
    assert (left_out["model"], left_out["cell"]["value"]) == ("m2", "snow")
    assert re.search(r"\b1\b.*`shifts`", left_out["reason"])


@pytest.mark.slow
def test_dillema_gives_every_image_the_changes_of_the_findings(gateway: Gateway) -> None:
    """In a free design the language model might never choose night. One change each, whatever the profile arranges."""
    sessions, store = gateway.context.sessions, gateway.context.store
    with sessions.begin() as session:
        job = session.get_one(Job, "drawn")
        job.methods = [read_method("lance", {})]
        session.execute(update(Counterfactual).values(method="lance"))
    build_report(sessions, store, "drawn", [])
    weaken(sessions, "m2", "snow")
    reply = gateway.client.post("/jobs/drawn/confirmation", json={"confirm_with": "dillema"})
    assert reply.status_code == 202, reply.text
    confirming = reply.json()
    (method,) = confirming["methods"]
    values = [{"factor": "weather", "value": "night"}, {"factor": "weather", "value": "snow"}]
    assert method["parameters"]["values"] == values
    assert method["parameters"]["factors"] == ["weather"]
    assert method["parameters"]["edits_per_counterfactual"] == 1
    assert method["parameters"]["same_caption"] is False
    plan = gateway.client.get(f"/jobs/{confirming['id']}/plan").json()
    assert (plan["design"]["kind"], plan["design"]["values"]) == ("balanced", values)
    assert plan["renderings"][0]["edits"] == 2 * confirming["images"]


@pytest.mark.slow
def test_dillema_leaves_out_findings_of_changes_from_a_value(gateway: Gateway) -> None:
    sessions, store = gateway.context.sessions, gateway.context.store
    with sessions.begin() as session:
        session.get_one(Job, "drawn").methods = [read_method("lance", {})]
        session.execute(update(Counterfactual).values(method="lance"))
    add_dusk(sessions)
    build_report(sessions, store, "drawn", [])
    job = gateway.client.post("/jobs/drawn/confirmation", json={"confirm_with": "dillema"}).json()
    (left_out,) = job["not_tested"]
    assert (left_out["cell"]["value"], left_out["cell"]["direction"]) == ("dusk", "from")
    assert "dusk" in left_out["reason"]
    finish(sessions, job["id"], "night", 20, right=False, method="dillema")
    build_report(sessions, store, job["id"], [])
    results = build_report(sessions, store, "drawn", [])
    verdicts = {
        (effect.cell.value, effect.cell.direction): effect.confirmation.verdict
        for effect in results.results[0].findings
        if effect.confirmation is not None
    }
    assert verdicts == {("dusk", "from"): "not tested again", ("night", "to"): "confirmed"}


def test_what_cannot_be_confirmed_is_refused_with_what_is_missing(gateway: Gateway) -> None:
    same = gateway.client.post("/jobs/drawn/confirmation", json={"confirm_with": "dillema"})
    assert same.status_code == 409
    assert "unrelated editor" in same.json()["detail"]
    assert gateway.client.post("/jobs/nothing/confirmation", json={}).status_code == 404
