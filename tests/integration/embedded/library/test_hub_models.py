"""A model named by its Hub id, fetched from a server with the Hub's contract."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_hub import COMMIT, SmallHub, served

SCRIPT = """
import sys
from embedded.library.models import fetched_folder
print(*sorted(path.name for path in fetched_folder(sys.argv[1]).iterdir()))
"""


@pytest.mark.slow
def test_only_the_files_of_a_model_are_fetched_at_a_revision(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    for name in ("config.json", "preprocessor_config.json", "model.safetensors", "pytorch_model.bin", "README.md"):
        (repository / name).write_text(name)
    with served(SmallHub({"somebody/net": repository})) as address:
        variables = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        fetched = subprocess.run(
            [sys.executable, "-c", SCRIPT, f"somebody/net@{COMMIT}"],
            env={**os.environ, **variables},
            text=True,
            capture_output=True,
            timeout=600,
        )
    assert fetched.returncode == 0, fetched.stderr[-2000:]
    assert fetched.stdout.split() == ["config.json", "model.safetensors", "preprocessor_config.json"]
