"""A perturber for weathers that no shipped model knows: trained, loaded by the service, held against doing without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tinyworld.measure.unseen_weather import replies, trained
from tinyworld.rates import wilson

ASKED = 60


@pytest.mark.slow
def test_the_adapter_makes_edits_that_the_shipped_model_does_not(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    profile = trained(tmp_path / "storms", 1000)
    without, with_it = replies("tiny", ASKED)["changes"], replies(str(profile), ASKED)["changes"]
    assert wilson(with_it, ASKED).low > wilson(without, ASKED).high
    assert with_it / ASKED > 0.5
