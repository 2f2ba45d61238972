"""`python -m embedded` from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY


@pytest.mark.slow
def test_a_folder_that_is_named_as_a_package_is_not_imported(tmp_path: Path) -> None:
    """It ended with an ImportError."""
    for name in ("shared", "gateway"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    command = [sys.executable, "-m", "embedded", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert "--directory" in ended.stdout
