"""`make gpu`, tried on the CPU with tiny sizes: nothing but the device and the sizes differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def figures(tmp_path: Path, part: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "research.gpu", part, "--device", "cpu", "--size", "tiny", "--out", str(tmp_path)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    document: dict[str, Any] = json.loads((tmp_path / f"{part}.json").read_text())
    assert (document["device"], document["size"], document["card"]) == ("cpu", "tiny", "none")
    return document


@pytest.mark.slow
def test_the_service_and_diffusers_render_the_same_batches_and_the_trace_names_what_is_slow(tmp_path: Path) -> None:
    document = figures(tmp_path, "generators")
    assert document["complete"]
    rows = document["rows"]
    batches = {by: [(row["batch"], row["steps"]) for row in rows if row["by"] == by] for by in ("service", "diffusers")}
    assert batches["service"] == batches["diffusers"] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(row["finite"] == row["batch"] for row in rows if row["by"] == "service")
    (traced,) = (row for row in rows if row["by"] == "service, traced")
    assert any("convolution" in name for name in traced["slowest"])
    assert (tmp_path / "trace-tiny.json.gz").stat().st_size > 1_000


@pytest.mark.slow
def test_the_editor_is_measured_under_every_offloading(tmp_path: Path) -> None:
    document = figures(tmp_path, "editors")
    assert document["complete"]
    edits = [row for row in document["rows"] if "evaluations" in row]
    assert {row["offload"] for row in edits} == {"none", "model", "sequential", "auto"}
    assert {row["evaluations"] for row in edits} == {4}


@pytest.mark.slow
def test_no_row_begins_after_the_time_is_up_and_those_before_are_kept(tmp_path: Path) -> None:
    document = figures(tmp_path, "editors", "--minutes", "0")
    assert not document["complete"]
    assert document["rows"] == []
