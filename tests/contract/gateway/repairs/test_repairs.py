"""`/repairs` over HTTP with a trained classifier: repair, download, load, and use as a model under test."""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sqlalchemy import update
from transformers import AutoImageProcessor, AutoModelForImageClassification
from typer.testing import CliRunner

from contrafact.cli import app
from gateway.database.tables import Job, SourceImage
from gateway.operations.housekeeping import Graces, run_housekeeping
from gateway.repairs.dispatch import check_repairs
from gateway.settings import Settings
from shared.media.storage import DirectoryStore
from shared.problems import DependencyFailed
from shared.schemas.repairs import TRAINED, RepairResult
from shared.words.repair_tables import class_table
from tests.support.archives import zipped
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.repair_site import CLASSES, add_job, picture, work_off, write_day_classifier
from tests.support.small_packages import onnx_files

REQUEST = {"model": "day", "steps": 40, "learning_rate": 5e-3, "batch_size": 16}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("day")
    write_day_classifier(folder)
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as served:
        add_job(served.context.sessions, served.context.store)
        with served.context.sessions.begin() as session:
            session.get_one(Job, "made").spec = {"outside_domain_note": "profile tiny knows only drawings."}
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        for name, content in (("day", files), ("day-onnx", onnx_files(folder))):
            archive = zipped(content, "my-model/")
            reply = served.client.post("/models", data={"name": name}, files={"model": ("m.zip", archive)})
            assert reply.status_code == 201, reply.text
        yield served


@pytest.fixture(scope="module")
def repair(gateway: Gateway) -> str:
    """A repair that is done."""
    reply = gateway.client.post("/jobs/made/repairs", json=REQUEST)
    assert reply.status_code == 202, reply.text
    repair = str(reply.json()["id"])
    assert reply.headers["Location"] == f"/repairs/{repair}"
    assert reply.json()["progress"] == {"done": 0, "total": 160, "arm": ""}
    assert gateway.client.get(f"/repairs/{repair}/model").status_code == 409
    work_off(gateway.context.sessions, gateway.context.store, Settings())
    return repair


def test_a_repair_wins_back_the_night_and_says_against_what(gateway: Gateway, repair: str) -> None:
    view = gateway.client.get(f"/repairs/{repair}").json()
    assert (view["state"], view["failure"]) == ("done", "")
    assert view["progress"]["done"] == 160
    result = RepairResult.model_validate(view["result"])
    assert (result.sources_trained_on, result.sources_held_out) == (21, 21)
    assert result.values_not_trained_on == ["fog"]  # the rarest
    sets = {figures.set: {arm.arm: arm.accuracy for arm in figures.arms} for figures in result.sets}
    # Seen with seeds 0 and 1, under AVX512 and SSE4.1: originals 1, counterfactuals 0 to 0.33 before and 1 repaired,
    # won back 1, the best control 0.67 below.
    assert (sets["originals"]["before"].value or 0) > 0.9
    assert (sets["counterfactuals"]["before"].value or 0) < 0.6
    assert (sets["counterfactuals"]["repaired"].value or 0) > 0.9
    assert sets["counterfactuals"]["repaired"].n == 42
    assert result.won_back is not None
    assert result.won_back.share > 0.8
    regained = result.won_back.regained
    assert regained is not None
    assert result.won_back.share == regained.value
    assert 0 < regained.low <= result.won_back.share <= regained.high
    (edits,) = [figures for figures in result.sets if figures.set == "counterfactuals"]
    assert edits.against_best_control.difference > 0.3
    assert edits.against_best_control.interval is not None
    assert any("Won back" in sentence for sentence in result.sentences)
    assert "profile tiny knows only drawings." in result.sentences[0], "a repair did not say what the report says"


def test_the_model_reads_back_has_a_card_and_goes_in_as_a_model_under_test(
    gateway: Gateway, repair: str, tmp_path: Path
) -> None:
    reply = gateway.client.get(f"/repairs/{repair}/model")
    assert reply.headers["Content-Type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(reply.content)) as archive:
        archive.extractall(tmp_path, filter="data")
    assert {path.name for path in tmp_path.iterdir()} == {
        "README.md", "config.json", "model.safetensors", "preprocessor_config.json"
    }  # fmt: skip
    card = (tmp_path / "README.md").read_text()
    for words in ("pipeline_tag: image-classification", "40 steps of 16", "seed 0", "repaired", "Won back"):
        assert words in card
    model = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    nights = [picture(label, "night", 77_000 + place) for place, label in enumerate(CLASSES * 4)]
    with torch.inference_mode():
        predictions = model(**processor(images=nights, return_tensors="pt")).logits.argmax(1).tolist()
    assert sum(predicted == place % 3 for place, predicted in enumerate(predictions)) >= 11
    added = gateway.client.post("/models", data={"name": "repaired"}, files={"model": ("model.tar", reply.content)})
    assert added.status_code == 201, added.text
    control = gateway.client.get(f"/repairs/{repair}/model", params={"arm": "originals"})
    assert b"a control" in control.content
    assert control.content != reply.content


def test_checkpoints_go_and_the_list_has_the_repair(gateway: Gateway, repair: str) -> None:
    keys = [item.key for item in gateway.context.store.iterate(f"repairs/{repair}/")]
    assert not [key for key in keys if key.endswith(("checkpoint.tar", "package.tar"))]
    assert [view["id"] for view in gateway.client.get("/repairs", params={"job": "made"}).json()["repairs"]] == [repair]
    assert gateway.client.get("/repairs", params={"job": "other"}).json() == {"repairs": [], "next": None}
    assert gateway.client.get("/repairs/ffff").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        ({"model": "day-onnx"}, 422, "ONNX"),
        ({"model": "nobody"}, 422, "nobody"),
        ({"model": "day", "values": ["sepia"]}, 422, "sepia"),
        ({"model": "day", "factors": ["colour"]}, 422, "factors: no accepted"),
        ({"model": "day", "held_out": 0.1}, 422, "would be held out"),
        ({"model": "day", "hold_out_values": ["night", "dusk"]}, 422, "at least 12 are needed"),
        ({"model": "day", "steps": 0}, 422, "steps"),
        ({"model": "day", "passes": 3}, 422, "unknown field passes"),
    ],
)
def test_models_that_cannot_be_repaired_are_refused_with_a_reason(
    gateway: Gateway, body: dict[str, object], status: int, sentence: str
) -> None:
    reply = gateway.client.post("/jobs/made/repairs", json=body)
    assert reply.status_code == status, reply.text
    assert reply.headers["Content-Type"].startswith("application/problem+json")
    assert sentence in reply.json()["detail"]


def test_jobs_that_give_nothing_to_train_on_are_refused(gateway: Gateway) -> None:
    sessions, store = gateway.context.sessions, gateway.context.store
    add_job(sessions, store, "bare", per_class=3, edits=False)
    reply = gateway.client.post("/jobs/bare/repairs", json={"model": "day"})
    assert reply.status_code == 422
    assert "no accepted counterfactual" in reply.json()["detail"]
    add_job(sessions, store, "few", per_class=3)
    reply = gateway.client.post("/jobs/few/repairs", json={"model": "day"})
    assert reply.status_code == 422
    assert "are needed" in reply.json()["detail"]
    with sessions.begin() as session:
        session.get_one(Job, "few").state = "running"
    assert gateway.client.post("/jobs/few/repairs", json={"model": "day"}).status_code == 409
    assert gateway.client.post("/jobs/none/repairs", json={"model": "day"}).status_code == 404


def test_cancelled_and_deleted_repairs_leave_nothing(gateway: Gateway) -> None:
    store = gateway.context.store
    first, second = (gateway.client.post("/jobs/made/repairs", json=REQUEST).json()["id"] for _ in range(2))
    assert gateway.client.post(f"/repairs/{first}/cancel").json()["state"] == "cancelled"
    assert gateway.client.delete(f"/repairs/{second}").status_code == 204
    work_off(gateway.context.sessions, store, Settings())
    assert gateway.client.get(f"/repairs/{first}").json()["state"] == "cancelled"
    assert gateway.client.get(f"/repairs/{second}").status_code == 404
    assert not [*store.iterate(f"repairs/{first}/"), *store.iterate(f"repairs/{second}/")]


@pytest.mark.slow
@pytest.mark.parametrize("of_suite", [False, True])
def test_a_deleted_job_or_suite_ends_the_trainers_of_its_repairs(gateway: Gateway, of_suite: bool) -> None:
    client, store = gateway.client, gateway.context.store
    add_job(gateway.context.sessions, store, "doomed")
    job, place = "doomed", "/jobs/doomed"
    if of_suite:
        assert client.post("/suites", json={"job": "doomed", "name": "doomed"}).status_code == 201
        job, place = client.post("/suites/doomed/runs", json={"model": "m1"}).json()["id"], "/suites/doomed"
        client.post(f"/jobs/{job}/cancel")
        with gateway.context.sessions.begin() as session:
            session.execute(update(SourceImage).where(SourceImage.job_id == job).values(state="done"))
    reply = client.post(f"/jobs/{job}/repairs", json=REQUEST)
    assert reply.status_code == 202, reply.text
    key = f"repairs/{reply.json()['id']}/grant.json"
    check_repairs(gateway.context.sessions, store, lambda _: None, Settings())
    assert store.exists(key)
    assert client.delete(place).status_code == 204
    assert not store.exists(key)
    assert not list(store.iterate(f"repairs/{reply.json()['id']}/"))
    client.delete("/jobs/doomed")


@pytest.mark.slow
@pytest.mark.parametrize("unreachable", [0, 1])
def test_a_grant_that_cannot_be_deleted_keeps_no_other_trainer(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, unreachable: int
) -> None:
    sessions, store = gateway.context.sessions, gateway.context.store
    job = f"doomed-{unreachable}"
    add_job(sessions, store, job)
    ids = [gateway.client.post(f"/jobs/{job}/repairs", json=REQUEST).json()["id"] for _ in range(2)]
    check_repairs(sessions, store, lambda _: None, Settings())
    leases = [f"repairs/{repair}/grant.json" for repair in ids]
    assert all(map(store.exists, leases))

    def delete(self: DirectoryStore, key: str) -> None:
        if key == leases[unreachable]:
            raise DependencyFailed("the object store is away")
        unlink(self, key)

    with monkeypatch.context() as patch:
        unlink = DirectoryStore.delete
        patch.setattr(DirectoryStore, "delete", delete)
        assert gateway.client.delete(f"/jobs/{job}").status_code == 502
    assert [store.exists(lease) for lease in leases] == [place == unreachable for place in range(2)]
    assert gateway.client.get(f"/jobs/{job}").status_code == 404
    graces = Graces(24 * 3600.0, 24 * 3600.0)
    assert run_housekeeping(sessions, store, graces, listing=False).repairs == 1
    assert not any(map(store.exists, leases))


def test_the_command_prints_the_table(gateway: Gateway, repair: str) -> None:
    url = str(gateway.client.base_url)
    listed = CliRunner().invoke(app, ["repairs", "list", "--json", "--url", url])
    assert repair in [json.loads(line)["id"] for line in listed.stdout.splitlines()]
    refusal = CliRunner().invoke(app, ["repair", "--job", "made", "--model", "day-onnx", "--url", url])
    assert refusal.exit_code == 3
    assert "ONNX" in refusal.stderr


@pytest.mark.slow
def test_a_paper_s_recipe_trains_from_scratch_and_gives_figures_by_class(gateway: Gateway) -> None:
    request = {"model": "day", "recipe": "dillema-resnet18", "epochs": 3, "batch_size": 8, "from_scratch": True}
    view = gateway.client.post("/jobs/made/repairs", json=request).json()
    assert (view["request"]["optimiser"], view["request"]["learning_rate"]) == ("sgd", 0.1)
    work_off(gateway.context.sessions, gateway.context.store, Settings())
    view = gateway.client.get(f"/repairs/{view['id']}").json()
    result = RepairResult.model_validate(view["result"])
    images = result.sources_trained_on + result.counterfactuals_trained_on
    assert view["progress"]["done"] == len(TRAINED) * 3 * math.ceil(images / 8)
    by_class = {(figures.set, arm.arm): arm.by_class for figures in result.sets for arm in figures.arms}
    rates = by_class["counterfactuals", "repaired"]
    assert sum(rate.n for rate in rates.values()) == 42
    assert set(rates) == set(by_class["originals", "before"])
    assert ("originals", next(iter(rates))) in {(name, label) for name, label, _ in class_table(result)}
    with tarfile.open(fileobj=io.BytesIO(gateway.client.get(f"/repairs/{view['id']}/model").content)) as archive:
        card = archive.extractfile("README.md")
        assert card is not None
        text = card.read().decode()
    for words in ("3 epochs", "SGD with momentum 0.9", "a tenth after each third", "random weights"):
        assert words in text
