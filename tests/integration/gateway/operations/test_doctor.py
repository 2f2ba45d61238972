"""`contrafact doctor`: a sound deployment passes, and each fault is named with its remedy."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text, update

from gateway.auth.keys import create_key
from gateway.database.sessions import Sessions
from gateway.database.tables import SourceImage
from gateway.operations.doctor import (
    Clock,
    PartAnswer,
    _clocks,
    device_of,
    examine,
    onnx_hint,
)
from gateway.settings import Settings
from llm_service.app import create_app
from shared.schemas.service import GpuInfo, Runtimes
from shared.service.gpu import gpu_of
from shared.service.settings import ServiceSettings
from tests.support.databases import ON_SQLITE
from tests.support.language_servers import listening
from tests.support.rows import add_job
from tests.support.s3_server import S3Server
from tests.support.service_infos import info
from tests.support.small_profile import write_profile
from tests.support.small_services import SmallServices, serve


@pytest.fixture
def services() -> Iterator[str]:
    with serve(SmallServices()) as url:
        yield url


@pytest.fixture
def settings(database_url: str, tmp_path: Path, services: str) -> Settings:
    urls = {f"{name}_url": services for name in ("caption", "llm", "diffusion", "evaluator")}
    store = f"directory:{tmp_path / 'objects'}"
    return Settings.model_validate({"database_url": database_url, "object_store": store, **urls})


def doctor_answers(settings: Settings) -> dict[str, PartAnswer]:
    """The last answer on each part, a wrong one before a right one."""
    answers = sorted(examine(settings), key=lambda answer: not answer.fine)
    return {answer.part: answer for answer in reversed(answers)}


def test_database_schema_keys_and_waiting_work(settings: Settings, sessions: Sessions) -> None:
    answers = doctor_answers(settings)
    assert [answers[part].fine for part in ("access", "database", "workers", "broker", "object store", "clocks")] == [
        True
    ] * 6
    with_keys = settings.model_copy(update={"authentication": True})
    assert "contrafact keys create" in doctor_answers(with_keys)["keys"].sentence
    with sessions.begin() as session:
        create_key(session, "ann")
    assert "keys" not in doctor_answers(with_keys)
    add_job(sessions, "old", images=2)
    assert doctor_answers(settings)["workers"].fine  # it only just came
    with sessions.begin() as session:
        session.execute(update(SourceImage).values(updated_at=datetime.now(UTC) - timedelta(hours=1)))
    assert "start a worker" in doctor_answers(settings)["workers"].sentence
    with sessions.begin() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    assert "revision 0000" in doctor_answers(settings)["database"].sentence
    assert not doctor_answers(settings)["database"].fine


@ON_SQLITE
def test_wrong_services_and_absent_ones(settings: Settings) -> None:
    answers = doctor_answers(settings)
    assert "CONTRAFACT_LLM_URL" in answers["llm_service"].sentence
    nobody = settings.model_copy(update={"llm_url": "http://127.0.0.1:1", "diffusion_url": "no address"})
    answers = doctor_answers(nobody)
    assert "http://127.0.0.1:1" in answers["llm_service"].sentence
    assert not answers["diffusion_service"].fine
    deployed = settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0", "profile": "none"})
    answers = doctor_answers(deployed)
    assert "CONTRAFACT_AUTHENTICATION" in answers["access"].sentence
    assert "does not answer" in answers["broker"].sentence
    assert "no profile 'none'" in answers["profile"].sentence
    unknown = settings.model_copy(update={"broker_url": "reddis://cache:6379/0"})
    assert "No such transport: reddis" in doctor_answers(unknown)["broker"].sentence


@ON_SQLITE
def test_an_s3_server_is_tried(settings: Settings, s3_server: S3Server) -> None:
    right = settings.model_copy(
        update={
            "object_store": "s3:doctors-bucket",
            "s3_endpoint": s3_server.endpoint,
            "s3_access_key": s3_server.access_key,
            "s3_secret_key": type(settings.s3_secret_key)(s3_server.secret_key),
        }
    )
    absent = doctor_answers(right)["object store"]
    assert "python -m gateway.storage.object_store" in absent.sentence
    from gateway.storage.object_store import open_store
    from shared.media.s3_store import S3Store

    store = open_store(right)
    assert isinstance(store, S3Store)
    store.create_bucket()
    answers = doctor_answers(right)
    assert answers["object store"].fine
    assert list(store.iterate()) == []
    assert "clocks agree" in answers["clocks"].sentence
    wrong = right.model_copy(update={"s3_secret_key": type(settings.s3_secret_key)("wrong")})
    assert not doctor_answers(wrong)["object store"].fine


def test_driver_cuda_and_onnxruntime_are_named() -> None:
    gpu = GpuInfo(uuid="GPU-1", name="NVIDIA A10G", gigabytes=24.0, driver="580.65.06")
    runtimes = Runtimes(cuda_build="13.0", onnx_provider="CPUExecutionProvider")
    service = info("evaluator_service", gpu, runtimes=runtimes)
    for part in ("cuda:0", "NVIDIA A10G", "driver 580.65.06", "CUDA 13.0", "onnxruntime on CPU"):
        assert part in device_of(service)
    assert "onnxruntime-gpu" in onnx_hint(service)
    right = Runtimes(cuda_build="13.0", onnx_provider="CUDAExecutionProvider")
    assert onnx_hint(info("evaluator_service", gpu, runtimes=right)) == ""
    assert onnx_hint(info("evaluator_service", device="cpu", runtimes=runtimes)) == ""
    assert "torch for CPUs" in device_of(info("caption_service", device="cpu"))


@ON_SQLITE
def test_a_service_whose_language_server_is_away_is_named(settings: Settings, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        profile = write_profile(tmp_path, url=nobody)
        chosen = ServiceSettings(profile=str(profile), device="cpu", threads=1)
        with listening(create_app(chosen)) as url:
            wait_until_loaded(url)
            answer = doctor_answers(settings.model_copy(update={"llm_url": url, "profile": str(profile)}))[
                "llm_service"
            ]
    assert not answer.fine
    assert nobody in answer.sentence


def wait_until_loaded(url: str) -> None:
    """Wait for a service's weights."""
    until = time.monotonic() + 120
    while httpx.get(f"{url}/v1/info", trust_env=False).status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_clocks_that_differ_are_named() -> None:
    steady = Clock("the database", 0.4)
    assert [answer.fine for answer in _clocks([steady])] == [True]
    answers = list(_clocks([steady, Clock("the broker", -70), replace(steady, of="llm_service", ahead=12)]))
    broker, language = (answer.sentence for answer in answers)
    assert re.search(r"broker.* 70 s behind", broker)
    assert re.search(r"llm_service.* 12 s ahead", language)


# Like an older driver's, which knows no compute_cap and refuses the whole query for it.
SMI = """#!/bin/sh
case "$*" in *compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;; esac
cat <<'END'
0, GPU-aa11, NVIDIA A10G, 23028, 580.65.06
1, GPU-bb22, NVIDIA H200, 143771, 580.65.06
END
"""


def test_a_gpu_is_found_as_torch_numbers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(SMI)
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_of("cpu") is None
    assert gpu_of("cuda:2") is None
    driver = "580.65.06"
    assert gpu_of("cuda") == GpuInfo(uuid="GPU-aa11", name="NVIDIA A10G", gigabytes=24.15, driver=driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    second = GpuInfo(uuid="GPU-bb22", name="NVIDIA H200", gigabytes=150.75, driver=driver)
    assert (gpu_of("cuda:0") or gpu_of("cpu")) == second
    assert gpu_of("cuda:1") is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb,GPU-aa")
    assert getattr(gpu_of("cuda:1"), "uuid", "") == "GPU-aa11"
    command.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_of("cuda:0") is None
