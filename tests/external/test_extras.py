"""Each extra installs every package that its program imports, including late imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.extras import packages, run

PROGRAMS = {
    "client": "contrafact contrafact.cli",
    "gateway": (
        "gateway.app gateway.worker.worker contrafact.cli gateway.database.migrations.__main__ kombu.transport.redis "
        "psycopg minio"
    ),
    "evaluator": "evaluator_service.app evaluator_service.repair_worker kombu.transport.redis minio",
    "weights": "shared.fetch_weights",
    # Everything that it does with the models of the user's included: parquet, ONNX, repairs.
    "embedded": "embedded.demo contrafact.cli gateway.export.huggingface caption_service.app llm_service.app "
    "diffusion_service.app evaluator_service.app evaluator_service.models_under_test.onnx_check "
    "evaluator_service.models_under_test.onnx_models evaluator_service.repair_worker kornia.augmentation.auto "
    "accelerate peft",
}


@pytest.mark.parametrize("extra", PROGRAMS)
def test_an_image_has_what_its_programs_import(extra: str, tmp_path: Path) -> None:
    imported = run(extra, f"import {PROGRAMS[extra].replace(' ', ', ')}", tmp_path)
    assert imported.returncode == 0, imported.stderr[-3000:]


def test_an_embedded_system_is_installed_without_clients_of_servers() -> None:
    """None is imported, as the test above shows; each extra of an image has those of the servers that it talks to."""
    clients = {"redis", "minio", "psycopg", "psycopg-binary", "pycryptodome", "argon2-cffi", "cffi"}
    assert not packages("embedded") & clients
    assert clients <= packages("gateway")
    assert {"redis", "minio"} <= packages("evaluator")
    assert packages("embedded") | packages("gateway") | packages("evaluator") <= packages("dev")


def test_other_packages_are_out_of_sight(tmp_path: Path) -> None:
    assert "torch" not in packages("gateway")
    process = run("gateway", "import importlib.util, numpy\nassert importlib.util.find_spec('torch') is None", tmp_path)
    assert process.returncode == 0, process.stderr
    failed = run("gateway", "import torch", tmp_path)
    assert "No module named 'torch'" in failed.stderr
