"""`/models` over HTTP: ownership, refusals, deletion; the evaluator is small."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from contrafact.cli import app
from gateway.operations.housekeeping import Graces, run_housekeeping
from shared.problems import InvalidInput
from shared.schemas.evaluation import ExamineReply, ExamineRequest, QuarantinedModel
from tests.support.archives import zipped
from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import Gateway, key_of, picture, serve_gateway
from tests.support.jatic_metadata import write_jatic_metadata
from tests.support.model_packages import HUB, PREPARED
from tests.support.small_services import CLASSES

NOW = Graces(0.0, 0.0)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with serve_gateway(tmp_path, authentication=True, max_model_bytes=200_000, max_models_per_owner=2) as served:
        yield served


def add(gateway: Gateway, headers: Mapping[str, str], files: Mapping[str, bytes] = HUB, **spec: Any) -> httpx.Response:
    parts = [("model", (name, data)) for name, data in files.items()]
    spec = {"name": "mine", **spec}
    return gateway.client.post("/models", files=[*parts, ("spec", ("s", json.dumps(spec).encode()))], headers=headers)


def detail(reply: httpx.Response, status: int) -> str:
    assert reply.status_code == status, reply.text
    return str(reply.json()["detail"])


def objects(gateway: Gateway) -> list[Path]:
    return sorted((gateway.directory / "objects" / "models").rglob("*.tar"))


def test_a_model_belongs_to_its_owner_alone(gateway: Gateway, ann: dict[str, str]) -> None:
    added = add(gateway, ann, licence="MIT", description="mine alone")
    assert added.status_code == 201, added.text
    view = added.json()
    place = added.headers["Location"]
    assert place == f"/models/{view['id']}"
    assert (view["name"], view["classes"], view["licence"], view["default"]) == ("mine", CLASSES, "MIT", False)
    ben = key_of(gateway, "ben")
    client = gateway.client
    assert [model["name"] for model in client.get("/models", headers=ann).json()["models"] if model["uploaded"]] == [
        "mine"
    ]
    assert not [model for model in client.get("/models", headers=ben).json()["models"] if model["uploaded"]]
    detail(client.get(place, headers=ben), 404)
    detail(client.delete(place, headers=ben), 404)
    files, spec = {"images": picture()}, {"spec": '{"task": "classify", "models": ["mine"]}'}
    assert "'mine'" in detail(client.post("/jobs", headers=ben, files=files, data=spec), 422)
    assert client.post("/jobs", headers=ann, files=files, data=spec).status_code == 202
    assert add(gateway, ben).status_code == 201, "a name is one's own, too"
    detail(client.get("/models"), 401)


@pytest.mark.slow
def test_names_digests_and_numbers_are_bounded(gateway: Gateway, ann: dict[str, str]) -> None:
    first = add(gateway, ann)
    assert (add(gateway, ann).status_code, len(objects(gateway))) == (200, 1), "the same again is found"
    assert "another model named 'mine'" in detail(add(gateway, ann, classes=["a", "b", "c"]), 409)
    shipped = "street-classifier"
    assert "choose another name" in detail(add(gateway, ann, name=shipped), 409)
    assert add(gateway, ann, name="second").status_code == 201
    assert "2 are kept" in detail(add(gateway, ann, name="third"), 409)
    assert gateway.client.delete(first.headers["Location"], headers=ann).status_code == 204
    assert add(gateway, ann, name="third").status_code == 201
    assert "larger than 200,000 bytes" in detail(add(gateway, ann, {"m.onnx": bytes(300_000)}, name="x"), 413)


def test_missing_fields_of_the_form_are_named(gateway: Gateway, ann: dict[str, str]) -> None:
    post = gateway.client.post
    model = ("model", ("model.zip", zipped(HUB, "my-model/")))
    assert "name the model" in detail(post("/models", files=[model], headers=ann), 422)
    assert "name" in detail(post("/models", files=[model], data={"name": "../x"}, headers=ann), 422)
    assert "with the @" in detail(post("/models", files={"name": (None, "m"), "model": (None, "x")}, headers=ann), 422)
    assert "unknown part url" in detail(
        post("/models", files=[model], data={"name": "m", "url": "http://x"}, headers=ann), 422
    )
    assert "there is no model" in detail(post("/models", files={"name": (None, "m")}, headers=ann), 422)
    detail(post("/models", json={"name": "m", "url": "file:///etc/passwd"}, headers=ann), 415)
    assert "pickle" in detail(add(gateway, ann, {**HUB, "pytorch_model.bin": pickle.dumps({})}), 422)
    assert "`auto_map`" in detail(add(gateway, ann, {**HUB, "config.json": b'{"auto_map": {"a": "b"}}'}), 422)
    assert objects(gateway) == []
    assert post("/models", files=[model], data={"name": "short"}, headers=ann).status_code == 201


def test_a_model_that_the_evaluator_refuses_is_not_kept(
    gateway: Gateway, ann: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: object) -> None:
        assert len(objects(gateway)) == 1, "it is there while it is looked at"
        raise InvalidInput("the model cannot be loaded: it is none")

    monkeypatch.setattr(gateway.context.services, "examine", refuse)
    assert "it is none" in detail(add(gateway, ann), 422)
    assert objects(gateway) == []
    assert not [model for model in gateway.client.get("/models", headers=ann).json()["models"] if model["uploaded"]]


def test_a_quarantined_model_is_shown_and_examined_again_when_it_is_uploaded_again(
    gateway: Gateway, ann: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    services, quarantined = gateway.context.services, list[QuarantinedModel]()
    operators, examined = services.models(), list[str]()

    def examine(request: ExamineRequest) -> ExamineReply:
        examined.append(request.upload.digest)
        quarantined.clear()
        return ExamineReply(kind="classification", classes=CLASSES)

    monkeypatch.setattr(services, "models", lambda: operators.model_copy(update={"quarantined": list(quarantined)}))
    monkeypatch.setattr(services, "examine", examine)
    view = add(gateway, ann).json()
    assert view["quarantine"] is None
    quarantined.append(QuarantinedModel(digest=view["revision"], reason="it never ended"))
    place = f"/models/{view['id']}"
    assert gateway.client.get(place, headers=ann).json()["quarantine"] == "it never ended"
    (listed,) = (m for m in gateway.client.get("/models", headers=ann).json()["models"] if m["uploaded"])
    assert listed["quarantine"] == "it never ended"
    again = add(gateway, ann)
    assert (again.status_code, again.json()) == (200, view)
    assert examined == [view["revision"]] * 2, "at the first upload, and to lift the quarantine"
    assert add(gateway, ann).status_code == 200
    assert len(examined) == 2
    assert gateway.client.get(place, headers=ann).json()["quarantine"] is None


@pytest.mark.slow
def test_a_model_of_a_running_job_stays_and_results_outlive_it(gateway: Gateway, ann: dict[str, str]) -> None:
    client = gateway.client
    place = add(gateway, ann).headers["Location"]
    spec = {"task": "classify", "models": ["mine"]}
    job = client.post("/jobs", files={"images": picture(), "spec": json.dumps(spec).encode()}, headers=ann).json()["id"]
    assert f"job {job} is testing this model" in detail(client.delete(place, headers=ann), 409)
    assert "the job is running" in detail(client.post(f"/jobs/{job}/models", json={"models": ["m1"]}, headers=ann), 409)
    assert client.post(f"/jobs/{job}/cancel", headers=ann).status_code == 200
    assert client.delete(place, headers=ann).status_code == 204
    assert client.get(f"/jobs/{job}", headers=ann).json()["models"] == ["mine"]


def test_links_open_one_object_for_a_while(gateway: Gateway, ann: dict[str, str]) -> None:
    add(gateway, ann)
    (path,) = objects(gateway)
    key = path.relative_to(gateway.directory / "objects").as_posix()
    link = urlsplit(gateway.context.store.link(key, 60))
    address = f"{link.path}?{link.query}"
    opened = gateway.client.get(address)
    assert (opened.status_code, opened.content) == (200, path.read_bytes()), "without a key: the link is one"
    detail(gateway.client.get(address.replace("expires=", "expires=1")), 403)
    detail(gateway.client.get(address[:-1] + "é"), 403)
    detail(gateway.client.get(address.replace(".tar", ".tar/../x")), 403)
    old = urlsplit(gateway.context.store.link(key, -5))
    detail(gateway.client.get(f"{old.path}?{old.query}"), 403)
    gone = urlsplit(gateway.context.store.link("models/aa/none.tar", 60))
    detail(gateway.client.get(f"{gone.path}?{gone.query}"), 404)
    assert oct((gateway.directory / "objects" / ".link-secret").stat().st_mode)[-3:] == "600"


def test_housekeeping_removes_packages_without_a_row(gateway: Gateway, ann: dict[str, str]) -> None:
    add(gateway, ann)
    gateway.context.store.put("models/aa/left-behind.tar", b"x")
    old = time.time() - 7_200
    for path in objects(gateway):
        os.utime(path, (old, old))
    assert run_housekeeping(gateway.context.sessions, gateway.context.store, Graces(3_600.0, 3_600.0)).models == 1
    assert len(objects(gateway)) == 1
    assert run_housekeeping(gateway.context.sessions, gateway.context.store, NOW).models == 0


def test_models_that_cannot_be_added_to_a_job_are_reported(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as served:
        add_drawn_job(served.context.sessions, served.context.store, per_class=2)
        add_to = served.client.post
        unknown = add_to("/jobs/drawn/models", json={"models": ["m9"]})
        assert "'m9'" in detail(unknown, 422)
        assert "more than once" in detail(add_to("/jobs/drawn/models", json={"models": ["m1", "m1"]}), 422)
        assert "unknown field url" in detail(add_to("/jobs/drawn/models", json={"url": "http://x"}), 422)
        detail(add_to("/jobs/nowhere/models", json={"models": ["m1"]}), 404)
        assert served.wakes == []


@pytest.mark.slow
def test_the_command_line_adds_lists_and_removes(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    for name, data in {**HUB, "README.md": b"hi", "training_args.bin": pickle.dumps({})}.items():
        (folder / name).write_bytes(data)
    (tmp_path / "gateway").mkdir()
    (tmp_path / "net.onnx").write_bytes(b"x")
    (tmp_path / "classes.txt").write_text("car\nbus\nboat\n")
    (tmp_path / "prepare.json").write_text(json.dumps(PREPARED))
    with serve_gateway(tmp_path / "gateway") as served:

        def contrafact(*arguments: object, code: int = 0) -> str:
            url = {"CONTRAFACT_URL": str(served.client.base_url)}
            result = CliRunner().invoke(app, ["models", *map(str, arguments)], env=url)
            assert result.exit_code == code, result.output
            return result.output if code else result.stdout

        assert contrafact("add", folder, "--name", "mine").strip() == "mine"
        options = ["--classes", tmp_path / "classes.txt", "--preprocessing", tmp_path / "prepare.json", "--json"]
        options += ["--task", "segmentation"]
        assert json.loads(contrafact("add", tmp_path / "net.onnx", "--name", "net", *options))["format"] == "onnx"
        assert "mine" in contrafact()
        assert "net" in contrafact("list")
        contrafact("remove", "mine")
        listed = json.loads(contrafact("list", "--json"))["models"]
        assert [model["name"] for model in listed if model["uploaded"]] == ["net"]
        with tarfile.open(objects(served)[0]) as package:
            described = package.extractfile("contrafact.json")
            assert described is not None
            assert json.loads(described.read())["kind"] == "segmentation", "the evaluator is told"
        assert "'mine'" in contrafact("remove", "mine", code=2)
        assert "no/where does not exist" in contrafact("add", "no/where", "--name", "x", code=2)
        assert "no model in" in contrafact("add", tmp_path / "gateway", "--name", "x", code=2)
        assert "no job" in contrafact("test", "j", "net", code=3)


def test_the_command_line_reads_the_metadata_of_jatic_beside_an_onnx_file(tmp_path: Path) -> None:
    write_jatic_metadata(tmp_path / "net.json", CLASSES, 32, 24)
    (tmp_path / "net.onnx").write_bytes(b"x")
    (tmp_path / "classes.txt").write_text("Auto\nBus\nBoot\n")
    (tmp_path / "gateway").mkdir()
    with serve_gateway(tmp_path / "gateway") as served:

        def description(name: str, *options: object) -> dict[str, Any]:
            before = set(objects(served))
            words = ["models", "add", tmp_path / "net.onnx", "--name", name, *options]
            url = {"CONTRAFACT_URL": str(served.client.base_url)}
            result = CliRunner().invoke(app, [str(word) for word in words], env=url)
            assert result.exit_code == 0, result.output
            (package_path,) = set(objects(served)) - before
            with tarfile.open(package_path) as package:
                stored = package.extractfile("contrafact.json")
                assert stored is not None
                read: dict[str, Any] = json.loads(stored.read())
                return read

        from_metadata = description("net")
        assert (from_metadata["classes"], from_metadata["output"]) == (["car", "bus", "boat"], "probabilities")
        assert (from_metadata["preprocessing"]["height"], from_metadata["preprocessing"]["width"]) == (32, 24)
        given = description("renamed", "--classes", tmp_path / "classes.txt", "--output", "logits")
        assert given["classes"] == ["Auto", "Bus", "Boot"]
        assert given["output"] == "logits", "options come before the metadata"
        assert given["preprocessing"] == from_metadata["preprocessing"]


def test_an_upload_that_is_no_form_or_stops_short_leaves_no_file(gateway: Gateway, ann: dict[str, str]) -> None:
    broken = gateway.client.post(
        "/models",
        content=io.BytesIO(b"--x\r\nnonsense"),
        headers={**ann, "Content-Type": "multipart/form-data; boundary=x"},
    )
    assert broken.status_code in (400, 422)
    assert objects(gateway) == []
