"""The shipped language models were trained on the current prompts of the methods."""

from __future__ import annotations

import json

import pytest

from gateway.methods import dillema, lance
from tests.support.paths import REPOSITORY


@pytest.mark.parametrize("folder", ["language", "roads/language"])
def test_prompts_have_not_drifted_from_the_weights(folder: str) -> None:
    record = json.loads((REPOSITORY / "tinyworld" / "weights" / folder / "training.json").read_text())
    trained_on = {name: record["prompts"][name] for name in ("dillema", "lance")}
    assert trained_on == {"dillema": dillema.prompt_digest(), "lance": lance.prompt_digest()}, (
        "the prompts of a method changed: train again with python -m research.train.language"
    )
