"""The command that writes a test set of the roads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_command_writes_pictures_masks_and_boxes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tinyworld.roads.demo", "--count", "2", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    assert [len(list((tmp_path / name).iterdir())) for name in ("images", "masks", "instances")] == [2, 2, 2]
    assert len(json.loads((tmp_path / "annotations.json").read_text())["images"]) == 2
