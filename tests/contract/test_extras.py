"""Each extra leads to every package that its program imports, those that are imported late included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.extras import packages, run

PROGRAMS = {
    "gateway": "gateway.app gateway.worker gateway.cli gateway.migrations.__main__ kombu.transport.redis psycopg minio",
    "evaluator": "evaluator_service.app evaluator_service.repair_worker kombu.transport.redis minio",
    "weights": "shared.fetch_weights",
}


@pytest.mark.parametrize("extra", PROGRAMS)
def test_an_image_has_what_its_programs_import(extra: str, tmp_path: Path) -> None:
    imported = run(extra, f"import {PROGRAMS[extra].replace(' ', ', ')}", tmp_path)
    assert imported.returncode == 0, imported.stderr[-3000:]


def test_other_packages_are_out_of_sight(tmp_path: Path) -> None:
    assert "torch" not in packages("gateway")
    seen = run("gateway", "import importlib.util, numpy\nassert importlib.util.find_spec('torch') is None", tmp_path)
    assert seen.returncode == 0, seen.stderr
    failed = run("gateway", "import torch", tmp_path)
    assert "No module named 'torch'" in failed.stderr
