"""The commands of docs/reference/http-api.md run as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.archives import zipped
from tests.support.drawn_job import serve_drawn_job
from tests.support.gateway_under_test import Gateway, picture
from tests.support.model_packages import HUB
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "http-api.md"
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
STRICT = 'set -euo pipefail; curl() { command curl -sS --fail-with-body "$@"; }\n'

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@pytest.fixture
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_drawn_job(tmp_path_factory.mktemp("gateway"), per_class=2) as served:
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.png").write_bytes(picture(1))
    (tmp_path / "b.png").write_bytes(picture(2))
    (tmp_path / "labels.csv").write_text("file,label\na.png,car\nb.png,bus\n")
    (tmp_path / "testset.zip").write_bytes(zipped({"car/1.png": picture(1), "bus/1.png": picture(2)}))
    (tmp_path / "my-model.zip").write_bytes(zipped(HUB, "my-model/"))
    (tmp_path / "net.onnx").write_bytes(b"the evaluator is small here")
    return tmp_path


def job_for(block: str, gateway: Gateway) -> str:
    """The job of a block's `$JOB`: one that others do not read, where the block changes it."""
    if "cancel" in block:
        reply = gateway.client.post("/jobs", files={"images": picture(1)}, data={"task": "classify the vehicle"})
        return str(reply.json()["id"])
    if "$JOB/models" in block:  # one that is over, and tests another model
        spec = b'{"task": "classify the vehicle", "models": ["m1"]}'
        job = str(gateway.client.post("/jobs", files={"images": picture(1), "spec": spec}).json()["id"])
        gateway.client.post(f"/jobs/{job}/cancel")
        return job
    return "drawn"


@pytest.mark.slow
def test_the_commands_run(gateway: Gateway, folder: Path) -> None:
    assert BLOCKS
    failed = {}
    for block in BLOCKS:
        script = STRICT + block.replace("http://127.0.0.1:8000", str(gateway.client.base_url))
        result = subprocess.run(
            ["bash", "-c", script],
            cwd=folder,
            env={**os.environ, "JOB": job_for(block, gateway)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        if result.returncode:
            failed[block] = result.stdout + result.stderr
    assert not failed, "\n\n".join(f"{block}{output}" for block, output in failed.items())
