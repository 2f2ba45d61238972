"""A perturber for weather that no shipped model knows: trained, loaded by the service, compared with no perturber."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tinyworld.measure.unseen_weather import replies, train_perturber
from tinyworld.statistics.rates import wilson

REQUESTS = 60


@pytest.mark.slow
def test_the_adapter_makes_edits_that_the_shipped_model_does_not(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    profile = train_perturber(tmp_path / "unseen-weather", 1000)
    without, with_it = replies("tiny", REQUESTS)["changes"], replies(str(profile), REQUESTS)["changes"]
    assert wilson(with_it, REQUESTS).low > wilson(without, REQUESTS).high
    assert with_it / REQUESTS > 0.5
