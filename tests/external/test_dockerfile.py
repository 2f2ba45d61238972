"""The Dockerfile: linted, and (slow) its steps run one by one in a fresh folder up to an app that answers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.compose_files import BASE, composed
from tests.support.extras import packages
from tests.support.http_jobs import wait_until_ready
from tests.support.image_steps import ROOT, Image, build, instructions, lineage, stages

DOCKERFILE = ROOT / "Dockerfile"
BUILDS = {
    name: service["build"]
    for name, service in composed(BASE)["services"].items()
    if ("build" in service and name in ("gateway", "weights")) or name.endswith("-service")
}


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert hadolint
    result = subprocess.run([hadolint, "--format", "json", str(DOCKERFILE)], text=True, capture_output=True)
    assert json.loads(result.stdout) == []


def test_the_base_is_pinned_and_the_user_is_a_number_that_is_not_root() -> None:
    ((_, base),) = [item for item in stages(DOCKERFILE)[""][1] if item[1].startswith("PYTHON_IMAGE=")]
    assert re.fullmatch(r"PYTHON_IMAGE=python:\d+\.\d+\.\d+-slim(-\w+)?", base)
    for name in ("gateway", "weights", "model-service"):
        steps = [item for _, instructions_of_stage in lineage(DOCKERFILE, name) for item in instructions_of_stage]
        users = [operand for keyword, operand in steps if keyword == "USER"]
        assert users == ["10001:10001"], name
        assert [keyword for keyword, _ in steps].count("CMD") == 1, name


def test_model_services_share_the_layer_with_torch() -> None:
    order = [name for name, _ in lineage(DOCKERFILE, "model-service")]
    assert order == ["base", "torch", "model-service"]
    for name in order[:2]:
        assert not any("SERVICE" in operand for _, operand in stages(DOCKERFILE)[name][1]), name
    (command,) = [operand for keyword, operand in stages(DOCKERFILE)["torch"][1] if keyword == "RUN"]
    shared = set(command.partition("constraints.txt")[2].split())
    assert "torch" in shared
    for name, recipe in BUILDS.items():
        if name.endswith("-service"):
            assert shared <= packages(recipe["args"]["SERVICE"].removesuffix("_service")), name
    assert all("torch" not in dict(lineage(DOCKERFILE, name)) for name in ("gateway", "weights"))


def test_the_standard_library_is_compiled() -> None:
    """The base image ships no bytecode of it."""
    steps = [operand for keyword, operand in stages(DOCKERFILE)["base"][1] if keyword == "RUN"]
    assert any("compileall" in step and "stdlib" in step for step in steps)


def test_only_what_is_copied_gets_past_dockerignore() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert "*" in lines
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = set()
    for keyword, operand in instructions(DOCKERFILE):
        if keyword == "COPY" and not operand.startswith("--from"):
            copied |= {source.rstrip("/") for source in operand.split()[:-1]}
    copied.remove("${SERVICE}")
    copied |= {build["args"]["SERVICE"] for name, build in BUILDS.items() if name.endswith("-service")}
    assert {source.removesuffix("/__init__.py") for source in copied} == allowed
    assert all((ROOT / name).exists() for name in allowed)


@contextmanager
def answering(image: Image, probe: str, **environment: str) -> Iterator[httpx.Client]:
    """The image's own command, running, once its probe says 200."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {name: image.inside(value) for name, value in image.environment.items()}
    variables |= {"UVICORN_PORT": str(port), "UVICORN_HOST": "127.0.0.1", "HOME": str(image.folder), **environment}
    log = image.folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(image.command, cwd=image.folder / "app", env=variables, stdout=output, stderr=output)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10) as client:
            wait_until_ready(f"http://127.0.0.1:{port}{probe}", process, log)
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM), log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()


def refuse_missing_bytecode(image: Image, *names: str) -> None:
    """A container cannot write bytecode, so each start would compile again what the image has none of."""
    for name in names:
        sources = set((image.folder / "app" / name).rglob("*.py"))
        compiled = {file for file in sources if Path(importlib.util.cache_from_source(str(file))).exists()}
        assert sources, name
        assert sources == compiled, name


@pytest.mark.slow
def test_gateway_steps_build_a_gateway_and_a_worker_without_torch(tmp_path: Path) -> None:
    image = build(DOCKERFILE, "gateway", BUILDS["gateway"].get("args", {}), tmp_path / "image")
    listed = image.run("/venv/bin/pip list --format=json").stdout
    names = {item["name"].lower() for item in json.loads(listed)}
    assert not names & {"torch", "transformers", "diffusers", "triton"}
    refuse_missing_bytecode(image, "gateway", "contrafact", "shared")
    # Celery imports a broker's transport, and SQLAlchemy a database's driver, when they are first used.
    programs = "gateway.app, gateway.worker.worker, kombu.transport.redis, minio, psycopg"
    loaded = image.run(f"python -c 'import sys, {programs}; print(*sys.modules)'")
    assert loaded.returncode == 0, loaded.stderr
    assert "torch" not in loaded.stdout.split()
    url = {"CONTRAFACT_DATABASE_URL": f"sqlite:///{tmp_path}/contrafact.db"}
    url["CONTRAFACT_OBJECT_STORE"] = f"directory:{tmp_path}/objects"
    for step in ("python -m gateway.database.migrations", "python -m gateway.storage.object_store"):
        result = image.run(step, **url)
        assert result.returncode == 0, result.stderr
    key = "cf_" + "a1" * 32
    _, _, script = composed(BASE)["services"]["first-key"]["command"]
    for _ in range(2):
        result = image.run(script.replace("$$", "$"), CONTRAFACT_API_KEY=key, **url)
        assert result.returncode == 0, result.stderr
    url["CONTRAFACT_BROKER_URL"] = "redis://127.0.0.1:1/0"  # nobody is there, but the transport is loaded
    with answering(image, "/readyz", CONTRAFACT_AUTHENTICATION="true", **url) as client:
        assert client.get("/jobs").status_code == 401
        assert client.get("/jobs", headers={"Authorization": f"Bearer {key}"}).status_code == 200


@pytest.mark.slow
def test_weights_steps_build_a_small_program(tmp_path: Path) -> None:
    image = build(DOCKERFILE, "weights", BUILDS["weights"].get("args", {}), tmp_path / "image")
    refuse_missing_bytecode(image, "shared")
    result = image.run(" ".join(image.command), CONTRAFACT_PROFILE="tiny")
    assert result.returncode == 0, result.stderr
    assert "0 sets of weights" in result.stdout
    assert image.run("python -c 'import torch'").returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BUILDS if name.endswith("-service")])
def test_model_service_steps_build_a_service_that_becomes_ready(name: str, tmp_path: Path) -> None:
    arguments = {key: str(value) for key, value in BUILDS[name]["args"].items()}
    arguments["PIP_EXTRA_INDEX_URL"] = ""  # here the CPU build of torch is at hand, by PIP_FIND_LINKS or otherwise
    image = build(DOCKERFILE, "model-service", arguments, tmp_path / "image")
    assert image.environment["UVICORN_PORT"] == arguments["PORT"]
    refuse_missing_bytecode(image, "shared", arguments["SERVICE"])
    if name == "evaluator-service":  # its image is also the trainer's
        loaded = image.run("python -c 'import evaluator_service.repair_worker, kombu.transport.redis, minio'")
        assert loaded.returncode == 0, loaded.stderr
    with answering(image, "/readyz", CONTRAFACT_DEVICE="cpu", CONTRAFACT_THREADS="1") as client:
        assert client.get("/v1/info").json()["profile"] == "tiny"
        assert client.get("/metrics").status_code == 200
    shutil.rmtree(image.folder)  # a gigabyte
