"""`POST /jobs/{job}/doses`: a job renders a job's weaknesses at several doses; the findings get their dose curves."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert, select, text, update

from gateway.database.sessions import Sessions
from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage
from gateway.export.selection import Selection, exported_images
from gateway.jobs.choices import plan
from gateway.methods import JobMethod, read_method
from gateway.methods.doses import DosesParameters
from gateway.operations.deletion import mark_deleted
from gateway.report.build import build_report
from gateway.results.provenance import packets_of_job
from shared.media.images import encode
from shared.profiles.instruct import Instruct, InstructPix2Pix, InstructServer
from shared.schemas.effects import DoseCurve
from shared.schemas.jobs import JobSpec
from shared.schemas.results import JobResults
from tests.support.drawn_job import add_second_changes
from tests.support.gateway_under_test import Gateway
from tests.support.predictions import ranked

_WEIGHTS = {"hub": "someone/editor", "revision": "0" * 40, "dtype": "float32", "gigabytes": 1, "licence": "none"}
PIX2PIX = InstructPix2Pix.model_validate({"engine": "instruct-pix2pix", "weights": _WEIGHTS})
SERVER = InstructServer.model_validate(
    {
        "engine": "server",
        "server": {"url": "http://images/v1", "model": "m", "revision": "1", "licence": "none", "gigabytes": 1},
        "fields": {"seed": "seed"},
    }
)
DOSED = {"0.5": False, "1": True, "1.5": True}  # whether the model loses the images at each dose


def parameters_of(gateway: Gateway, job: str) -> DosesParameters:
    with gateway.context.sessions() as session:
        (method,) = session.get_one(Job, job).methods
        assert isinstance(method.parameters, DosesParameters)
        return method.parameters


def finish(sessions: Sessions, job: str, *, returns: bool, images: int = 99) -> None:
    """Give the job of doses its rows: `m1` loses images as `DOSED` says, and is right again if the finding returns."""
    rows: list[dict[str, Any]] = []
    predictions: list[dict[str, Any]] = []
    with sessions.begin() as session:
        for source in session.scalars(select(SourceImage).where(SourceImage.job_id == job)).all():
            common = {"job_id": job, "source_image_id": source.id}
            opinions: list[tuple[str | None, bool]] = [(None, True)]
            lost = {f"night (dose {dose})": wrong for dose, wrong in DOSED.items()}
            lost["night (undone)"] = not returns
            for number, (value, wrong) in enumerate(lost.items() if source.position < images else ()):
                undone, name = value == "night (undone)", f"{source.id}-{2 * number}"
                change = {"factor": "weather", "from_phrase": "day", "to_phrase": "night", "from_value": ""}
                row = {"position": source.position, "method": "doses", "seed": 0, "caption": "", "lineage": {}}
                shared = {**common, **row, "image_digest": source.digest, "accepted": True, "from_value": ""}
                edit = {**shared, "id": name, "ordinal": 2 * number, "arm": "edit", "scores": {"direction": 0.4}}
                changed = {"factor": "weather", "to_value": value, "changes": [{**change, "to_value": value}]}
                null = {"null_ordinal": None if undone else 2 * number + 1, "null_check": None if undone else ""}
                rows.append({**edit, **changed, **null})
                opinions.append((name, not wrong))
                if not undone:
                    arm: dict[str, Any] = {
                        "factor": None,
                        "to_value": None,
                        "changes": [],
                        "null_ordinal": None,
                        "null_check": None,
                    }
                    arm_id = f"{source.id}-{2 * number + 1}"
                    ordinal = 2 * number + 1
                    rows.append({**shared, "scores": {}, **arm, "id": arm_id, "ordinal": ordinal, "arm": "null"})
                    opinions.append((arm_id, True))
            for image, right in opinions:
                truth = ranked(source.ground_truth, 1 if right else 2, 0.9)
                values = {"predicted": source.ground_truth if right else "boat", **truth}
                shown = {"model": "m1", "probability": 0.9}
                key = f"{image or source.id}-m1"
                predictions.append({**common, **shown, **values, "id": key, "counterfactual_id": image})
        if rows:
            session.execute(insert(Counterfactual), rows)
        session.execute(insert(Prediction), predictions)
        session.execute(update(SourceImage).where(SourceImage.job_id == job).values(state="done"))
        session.execute(update(Job).where(Job.id == job).values(state="done"))


def night_bus(results: JobResults) -> Any:
    findings = [effect for figures in results.results for effect in figures.findings if figures.model == "m1"]
    return next(effect for effect in findings if (effect.cell.value, effect.cell.direction) == ("night", "to"))


@pytest.mark.slow
@pytest.mark.parametrize(("returns", "verdict"), [(True, "returns"), (False, "does not return")])
def test_a_weakness_gets_its_dose_curve_and_says_whether_it_returns(
    gateway: Gateway, returns: bool, verdict: str
) -> None:
    reply = gateway.client.post("/jobs/drawn/doses", json={})
    assert reply.status_code == 202, reply.text
    job = reply.json()
    assert (job["models"], [method["name"] for method in job["methods"]]) == (["m1", "m2"], ["doses"])
    assert gateway.client.post("/jobs/drawn/doses", json={}).json()["id"] == job["id"], "started once"
    sessions, store = gateway.context.sessions, gateway.context.store
    finish(sessions, job["id"], returns=returns)
    job_report = build_report(sessions, store, job["id"], [])
    results = build_report(sessions, store, "drawn", [])
    effect = night_bus(results)
    curve = effect.dose
    assert isinstance(curve, DoseCurve)
    assert (curve.job, curve.parameter, curve.verdict) == (job["id"], "guidance", "grows")
    assert [point.dose for point in curve.points] == [0.5, 1.0, 1.5]
    assert [point.value for point in curve.points] == [3.75, 7.5, 11.25], "DILLEMA's guidance of 7.5 in this job"
    n = curve.sources
    assert 12 <= n == job["images"] <= 14
    assert [point.delta_accuracy for point in curve.points] == [0, -1, -1]
    assert curve.trend == pytest.approx(-1)
    assert all(point.interval and point.interval.low <= point.delta_accuracy for point in curve.points)
    assert [point.edit_shown for point in curve.points] == pytest.approx([0.4] * 3)
    assert curve.undone is not None
    assert (curve.undone.verdict, curve.undone.sources) == (verdict, n)
    assert (curve.undone.regained, curve.undone.remaining) == ((1, 0) if returns else (0, -1))
    assert all(cell.dose is None for figures in results.results for cell in figures.cells if cell.cell != effect.cell)
    at_full = [cell for figures in job_report.results for cell in figures.cells if cell.dose]
    assert [cell.cell.value for cell in at_full] == ["night (dose 1)"], "the job's own report has the curve too"
    assert all(figures.variance is None for figures in job_report.results), "doses of an edit are not its seeds"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "term"),
    [("dillema", "trainedAlgorithmicMedia"), ("instruct", "compositeWithTrainedAlgorithmicMedia")],
)
def test_dosed_images_have_the_digital_source_type_of_the_dosed_method(
    gateway: Gateway, method: str, term: str
) -> None:
    job = gateway.client.post("/jobs/drawn/doses", json={}).json()["id"]
    sessions = gateway.context.sessions
    finish(sessions, job, returns=True)
    parameters = parameters_of(gateway, job).model_copy(update={"method": method})
    with sessions.begin() as session:
        session.get_one(Job, job).methods = [JobMethod("doses", parameters)]
    images = [image for image in exported_images(sessions, job, Selection(verdict="any")) if image.method == "doses"]
    assert images
    assert {image.digital_source_type for image in images} == {term}
    with sessions() as session:
        session.execute(update(SourceImage).where(SourceImage.job_id == job).values(digest=None))
        packets = packets_of_job(session, job, [image.image for image in images])
        session.rollback()
    assert packets
    assert all(f'/{term}"'.encode() in packet for packet in packets.values())


def test_the_report_shows_the_curve(gateway: Gateway) -> None:
    job = gateway.client.post("/jobs/drawn/doses", json={}).json()["id"]
    sessions, store = gateway.context.sessions, gateway.context.store
    finish(sessions, job, returns=True)
    build_report(sessions, store, job, [])
    build_report(sessions, store, "drawn", [])
    page = gateway.client.get("/jobs/drawn/report").text
    assert 'id="doses"' in page
    assert page.count("forest dose") == page.count("does not change the edit") == 1, "φ is 0.4 at every dose"
    view = gateway.client.get("/jobs/drawn/view").text
    assert 'id="doses"' in view
    findings = gateway.client.get("/jobs/drawn/results?limit=1").json()["metrics"]["results"]
    curves = [cell["dose"] for figures in findings for cell in figures["cells"] if cell["dose"]]
    assert [curve["undone"]["verdict"] for curve in curves] == ["returns"]


@pytest.mark.slow
def test_a_deleted_job_of_doses_gives_no_curve(gateway: Gateway) -> None:
    job = gateway.client.post("/jobs/drawn/doses", json={}).json()["id"]
    sessions, store = gateway.context.sessions, gateway.context.store
    finish(sessions, job, returns=True)
    build_report(sessions, store, job, [])
    assert night_bus(build_report(sessions, store, "drawn", [])).dose is not None
    with sessions.begin() as session:
        mark_deleted(session, job)
    build_report(sessions, store, job, [])  # by an analysis that ends after the deletion
    assert night_bus(build_report(sessions, store, "drawn", [])).dose is None


@pytest.mark.slow
def test_a_parameter_that_the_other_job_did_not_have_is_no_part_of_the_request(gateway: Gateway) -> None:
    with gateway.context.sessions.begin() as session:
        (method,) = session.get_one(Job, "drawn").methods
        parameters = method.choice().parameters
        del parameters["recaption"]  # as if an older version had made the job
        older = json.dumps([{"name": method.name, "parameters": parameters}])
        session.execute(text("UPDATE jobs SET methods = :older WHERE id = 'drawn'"), {"older": older})
    job = gateway.client.post("/jobs/drawn/doses", json={}).json()["id"]
    with gateway.context.sessions() as session:
        stored = session.get_one(Job, job).spec
    request = JobSpec.model_validate({name: stored[name] for name in JobSpec.model_fields if name in stored})
    assert request.methods is not None
    editor = request.methods[0].parameters["controlled"]
    assert isinstance(editor, dict)
    assert "recaption" not in editor
    assert editor["guidance"] == 7.5
    assert parameters_of(gateway, job).editor_parameters.recaption is False


@pytest.mark.slow
def test_few_images_have_a_curve_without_intervals(gateway: Gateway) -> None:
    job = gateway.client.post("/jobs/drawn/doses", json={}).json()["id"]
    sessions, store = gateway.context.sessions, gateway.context.store
    finish(sessions, job, returns=True, images=5)
    build_report(sessions, store, job, [])
    curve = night_bus(build_report(sessions, store, "drawn", [])).dose
    assert (curve.sources, curve.verdict, curve.trend_interval) == (5, "too few images", None)
    assert curve.undone.verdict == "too few images"


def test_the_edits_are_the_counted_ones_of_the_cell_whatever_they_did_to_the_model(gateway: Gateway) -> None:
    reply = gateway.client.post("/jobs/drawn/doses", json={"doses": [1, 2], "parameter": "control_scale"})
    parameters = parameters_of(gateway, reply.json()["id"])
    with gateway.context.sessions() as session:
        counted = session.scalars(
            select(Counterfactual)
            .join(SourceImage, Counterfactual.source_image_id == SourceImage.id)
            .where(Counterfactual.job_id == "drawn", Counterfactual.to_value == "night", Counterfactual.counted)
            .where(SourceImage.ground_truth == "bus")
        ).all()
        captions = sorted((edit.caption, edit.new_caption) for edit in counted)
    assert sorted((edit.caption, edit.new_caption) for edit in parameters.edits) == captions
    assert {(edit.to_value, edit.from_value, edit.region) for edit in parameters.edits} == {("night", "", "structure")}
    assert (parameters.parameter, parameters.doses) == ("control_scale", (1.0, 2.0))


def test_more_images_than_asked_for_are_sampled(gateway: Gateway) -> None:
    job = gateway.client.post("/jobs/drawn/doses", json={"images": 12}).json()
    assert job["images"] == 12
    assert len(parameters_of(gateway, job["id"]).edits) == 12


def test_few_step_weights_have_no_guidance_to_dose(gateway: Gateway) -> None:
    few_step = gateway.context.profile.diffusion.few_step
    assert few_step is not None
    few_step_parameters = {"steps": few_step.steps, "guidance": few_step.guidance}
    with gateway.context.sessions.begin() as session:
        session.get_one(Job, "drawn").methods = [read_method("dillema", few_step_parameters)]
    refused = gateway.client.post("/jobs/drawn/doses", json={"parameter": "guidance"})
    assert refused.status_code == 422
    assert "control_scale" in refused.json()["detail"]
    job = gateway.client.post("/jobs/drawn/doses", json={}).json()
    assert parameters_of(gateway, job["id"]).parameter == "control_scale"


def test_doses_of_a_calibrated_job_are_judged_at_the_thresholds_of_its_arms(gateway: Gateway) -> None:
    """Without the check `validity`, which knows no doses, they had no threshold at all."""
    spec = {"task": "name it", "models": [], "methods": [{"name": "dillema"}], "calibration": "tinyworld"}
    profile = gateway.context.profile
    (calibrated,) = plan(JobSpec.model_validate(spec), profile, []).methods
    assert list(calibrated.thresholds) == ["label", "validity"]
    with gateway.context.sessions.begin() as session:
        session.get_one(Job, "drawn").methods = [calibrated]
    reply = gateway.client.post("/jobs/drawn/doses", json={})
    assert reply.status_code == 202, reply.text
    editor = parameters_of(gateway, reply.json()["id"]).controlled
    assert editor is not None
    assert editor.thresholds == editor.thresholds_for_arms == profile.thresholds


@pytest.mark.slow
def test_a_sweep_keeps_the_fraction_of_each_edit(gateway: Gateway) -> None:
    with gateway.context.sessions.begin() as session:
        session.get_one(Job, "drawn").methods = [read_method("lance", {})]
        session.execute(update(Counterfactual).values(method="lance", lineage={"self_fraction": 0.7}))
    build_report(gateway.context.sessions, gateway.context.store, "drawn", [])
    job = gateway.client.post("/jobs/drawn/doses", json={"parameter": "self_fraction"}).json()
    parameters = parameters_of(gateway, job["id"])
    assert {edit.self_fraction for edit in parameters.edits} == {0.7}
    assert parameters.inverted is not None
    assert "direction" in parameters.checks


def make_instructed(gateway: Gateway, engine: Instruct = PIX2PIX, **parameters: float | str) -> None:
    """Turn the job `drawn` into one of instructed edits, under a profile with this editor."""
    profile = gateway.context.profile
    diffusion = profile.diffusion.model_copy(update={"instruct": engine})
    object.__setattr__(gateway.context, "profile", profile.model_copy(update={"diffusion": diffusion}))
    with gateway.context.sessions.begin() as session:
        session.get_one(Job, "drawn").methods = [read_method("instruct", {**parameters})]
        session.execute(update(Counterfactual).values(method="instruct", lineage={"instruction": "Make it night."}))
    build_report(gateway.context.sessions, gateway.context.store, "drawn", [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "own", "parameter"),
    [(PIX2PIX, {}, "guidance"), (PIX2PIX, {"guidance": 1}, "wording"), (SERVER, {}, "wording")],
)
def test_instructed_edits_are_dosed_by_what_the_editor_takes(
    gateway: Gateway, engine: Instruct, own: dict[str, float], parameter: str
) -> None:
    make_instructed(gateway, engine, **own)
    reply = gateway.client.post("/jobs/drawn/doses", json={})
    assert reply.status_code == 202, reply.text
    parameters = parameters_of(gateway, reply.json()["id"])
    assert (parameters.method, parameters.parameter) == ("instruct", parameter)
    assert parameters.instructed is not None
    assert {edit.instruction for edit in parameters.edits} == {"Make it night."}
    finish(gateway.context.sessions, reply.json()["id"], returns=True)
    build_report(gateway.context.sessions, gateway.context.store, reply.json()["id"], [])
    curve = night_bus(build_report(gateway.context.sessions, gateway.context.store, "drawn", [])).dose
    assert (curve.method, curve.parameter, curve.undone.verdict) == ("instruct", parameter, "returns")


@pytest.mark.slow
def test_doses_of_edits_around_objects_take_the_masks_along(gateway: Gateway) -> None:
    mask = encode(np.pad(np.full((64, 64), 255, np.uint8), 32))
    sent = hashlib.sha256(mask).hexdigest()
    reply = gateway.client.put(f"/images/{sent}?mask=true", content=mask)
    assert reply.is_success, reply.text
    with gateway.context.sessions.begin() as session:
        session.execute(update(SourceImage).values(object_digest=reply.json()["digest"]))
    make_instructed(gateway, SERVER, region="background")
    reply = gateway.client.post("/jobs/drawn/doses", json={})
    assert reply.status_code == 202, reply.text
    with gateway.context.sessions() as session:
        job = session.get_one(Job, reply.json()["id"])
        assert job.source_images
        assert all(source.object_digest for source in job.source_images)
    editor = parameters_of(gateway, reply.json()["id"]).instructed
    assert editor is not None
    assert editor.region == "background"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "request_", "words"),
    [
        (SERVER, {"parameter": "guidance"}, "dose wording"),
        (SERVER, {"parameter": "image_guidance"}, "InstructPix2Pix"),
        (PIX2PIX, {"parameter": "self_fraction"}, "no self_fraction"),
        (PIX2PIX, {"parameter": "wording", "doses": [0.75, 1]}, "no words for a dose of 0.75"),
    ],
)
def test_a_dose_that_an_editor_of_instructions_does_not_take_is_refused(
    gateway: Gateway, engine: Instruct, request_: dict[str, object], words: str
) -> None:
    make_instructed(gateway, engine)
    reply = gateway.client.post("/jobs/drawn/doses", json=request_)
    assert reply.status_code == 422, reply.text
    assert words in str(reply.json())


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        ({"method": "lance"}, 409, "no weakness"),
        ({"parameter": "self_fraction"}, 422, "self_fraction"),
        ({"doses": [0.1, 1]}, 422, "guidance"),
        ({"doses": [0.5, 1.5]}, 422, "1"),
    ],
)
def test_what_dillema_has_no_dose_of_is_refused_with_what_to_change(
    unchanged: Gateway, request_: dict[str, object], status: int, words: str
) -> None:
    reply = unchanged.client.post("/jobs/drawn/doses", json=request_)
    assert reply.status_code == status, reply.text
    assert words in str(reply.json())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["corruptions", "reconstruction"])
def test_methods_without_doses_are_refused(gateway: Gateway, method: str) -> None:
    with gateway.context.sessions.begin() as session:
        session.get_one(Job, "drawn").methods = [read_method(method, {})]
        session.execute(update(Counterfactual).values(method=method))
    if method == "corruptions":
        with gateway.context.sessions.begin() as session:
            for field in ("night", "rain", "snow", "beach"):
                session.execute(
                    update(Counterfactual).where(Counterfactual.to_value == field).values(to_value=f"{field} 3")
                )
            for row in session.scalars(select(Counterfactual).where(Counterfactual.arm == "edit")):
                row.changes = [
                    {**change, "to_value": f"{change['to_value']} 3", "from_value": ""} for change in row.changes
                ]
    build_report(gateway.context.sessions, gateway.context.store, "drawn", [])
    reply = gateway.client.post("/jobs/drawn/doses", json={})
    assert reply.status_code == 422, reply.text
    assert "no dose" in str(reply.json())


@pytest.mark.slow
def test_edits_with_several_changes_have_no_dose_and_the_refusal_says_how_to_get_one(gateway: Gateway) -> None:
    add_second_changes(gateway.context.sessions, gateway.context.store)
    reply = gateway.client.post("/jobs/drawn/doses", json={})
    assert reply.status_code == 409, reply.text
    assert "edits_per_counterfactual" in reply.json()["detail"]


def test_an_unknown_job_is_not_found(unchanged: Gateway) -> None:
    assert unchanged.client.post("/jobs/nothing/doses", json={}).status_code == 404


def test_users_do_not_choose_the_method(unchanged: Gateway) -> None:
    listed = [method["name"] for method in unchanged.client.get("/methods").json()["methods"]]
    assert "doses" not in listed
    assert "dillema" in listed
