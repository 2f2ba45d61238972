"""`contrafact.test` and the modules beside it that need the system: what they refuse before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import contrafact

CLIENT_ALONE = "import sys; sys.modules.update(celery=None, scipy=None); import contrafact, contrafact.cli; import "


def test_a_value_without_its_factor_is_refused_before_the_system_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'night': write FACTOR=VALUE, such as weather=night"):
        contrafact.test("street-classifier", [], task="name it", values=["night"], directory=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_column_of_labels_is_refused_for_a_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`label_column` is a column of a Hugging Face data set"):
        contrafact.test("street-classifier", [], task="name it", label_column="breed", directory=tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["contrafact.embedded", "contrafact.methods"])
def test_a_client_without_the_system_is_told_what_to_install(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", CLIENT_ALONE + name], capture_output=True, text=True, timeout=300)
    assert done.stderr.splitlines()[-1].endswith("install `contrafact[embedded]`")
