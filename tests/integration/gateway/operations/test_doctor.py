"""`contrafact doctor`: a sound deployment passes, and each fault is named with its remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text, update

from gateway.auth.keys import create_key
from gateway.database.sessions import Sessions
from gateway.database.tables import SourceImage
from gateway.operations.doctor import Answer, Clock, _clocks, examine
from gateway.operations.weights_check import memory, needed_weights, service_faults
from gateway.settings import Settings
from shared import __version__
from shared.gpu import gpu_of
from shared.profiles import load_profile
from shared.schemas.service import GpuInfo, ServiceInfo, ServiceName, WeightsInfo
from shared.weights import Weights
from tests.support.rows import add_job
from tests.support.s3_server import S3Server
from tests.support.small_services import SmallServices, serve

PAPER = load_profile("paper")


@pytest.fixture
def services() -> Iterator[str]:
    with serve(SmallServices()) as url:
        yield url


@pytest.fixture
def settings(database_url: str, tmp_path: Path, services: str) -> Settings:
    return Settings(
        database_url=database_url,
        object_store=f"directory:{tmp_path / 'objects'}",
        **{f"{name}_url": services for name in ("caption", "llm", "diffusion", "evaluator")},
    )


def doctor_answers(settings: Settings) -> dict[str, Answer]:
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
        session.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    assert "revision 0001" in doctor_answers(settings)["database"].sentence
    assert not doctor_answers(settings)["database"].fine


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
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


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
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
    from shared.s3_store import S3Store

    store = open_store(right)
    assert isinstance(store, S3Store)
    store.create_bucket()
    answers = doctor_answers(right)
    assert answers["object store"].fine
    assert list(store.iterate()) == []
    assert "clocks agree" in answers["clocks"].sentence
    wrong = right.model_copy(update={"s3_secret_key": type(settings.s3_secret_key)("wrong")})
    assert not doctor_answers(wrong)["object store"].fine


def info(name: ServiceName, gpu: GpuInfo | None = None, **changes: object) -> ServiceInfo:
    """A service as it should be under profile `paper`."""
    weights = [
        WeightsInfo(
            role=str(place),
            id=source.id if isinstance(source, Weights) else source.model,
            revision=source.revision,
            dtype="float16",
            licence=source.licence,
        )
        for place, source in enumerate(needed_weights(PAPER)[name])
    ]
    service_info = ServiceInfo(
        service=name,
        profile="paper",
        device="cuda:0",
        deterministic=False,
        revision="1",
        weights=weights,
        version=__version__,
        gpu=gpu,
    )
    return service_info.model_copy(update=changes)


def test_weights_are_compared_with_the_profile() -> None:
    weights = needed_weights(PAPER)["diffusion_service"]

    def faults(**changes: object) -> str:
        return "; ".join(service_faults(info("diffusion_service", **changes), "paper", weights))  # type: ignore[arg-type]

    assert faults() == ""
    assert "version" in faults(version="0.0")
    assert "CONTRAFACT_PROFILE" in faults(profile="tiny")
    base, control, *others = info("diffusion_service").weights
    assert control.id in faults(weights=[base, *others])
    other = base.model_copy(update={"revision": "f" * 40})
    assert f"its {base.id} is revision ffffffffffff" in faults(weights=[other, control, *others])


def test_few_step_weights_are_needed_and_count_as_a_second_unet() -> None:
    modern = load_profile("modern")
    weights = needed_weights(modern)["diffusion_service"]
    (lora,) = [source for source in weights if isinstance(source, Weights) and source.id == "ByteDance/SDXL-Lightning"]
    assert lora.gigabytes == pytest.approx(5.1)
    (fault,) = service_faults(info("diffusion_service"), "paper", [lora])
    assert "ByteDance/SDXL-Lightning" in fault


def test_the_weights_of_all_services_on_a_gpu_must_fit_it() -> None:
    small = GpuInfo(uuid="GPU-1", name="A10G", gigabytes=24.0)
    large = replace_gpu(small, uuid="GPU-2", gigabytes=80.0)
    weights = needed_weights(PAPER)
    names: tuple[ServiceName, ...] = ("caption_service", "diffusion_service", "evaluator_service")
    shared = list(memory({name: info(name, large) for name in names}, weights))
    assert [fine for fine, _ in shared] == [True]
    assert "23.8 GB" in shared[0][1]
    both = {"caption_service": info("caption_service", small), "diffusion_service": info("diffusion_service", small)}
    tight = replace_gpu(small, gigabytes=16.0)
    both = {name: service.model_copy(update={"gpu": tight}) for name, service in both.items()}
    ((fine, sentence),) = memory(both, weights)  # type: ignore[arg-type]
    assert not fine
    assert "GPU" in sentence
    ((fine, sentence),) = memory({"caption_service": info("caption_service")}, weights)
    assert (fine, "memory is unknown" in sentence) == (False, True)


def replace_gpu(gpu: GpuInfo, **changes: object) -> GpuInfo:
    return gpu.model_copy(update=changes)


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
0, GPU-aa11, NVIDIA A10G, 23028
1, GPU-bb22, NVIDIA H200, 143771
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
    assert gpu_of("cuda") == GpuInfo(uuid="GPU-aa11", name="NVIDIA A10G", gigabytes=24.15)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert (gpu_of("cuda:0") or gpu_of("cpu")) == GpuInfo(uuid="GPU-bb22", name="NVIDIA H200", gigabytes=150.75)
    assert gpu_of("cuda:1") is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb,GPU-aa")
    assert getattr(gpu_of("cuda:1"), "uuid", "") == "GPU-aa11"
    command.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_of("cuda:0") is None
