"""Jobs of a small world give the same results as when they were kept: structure changes, behaviour does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import golden


@pytest.mark.slow
def test_results_are_those_that_were_kept(tmp_path: Path) -> None:
    said = golden.play(tmp_path)
    assert set(said) == {file.name.removesuffix(".json.xz") for file in golden.FOLDER.glob("*.json.xz")}
    for name, answer in said.items():
        assert list(golden.differences(golden.read(name), golden.lasting(answer)))[:20] == [], name
