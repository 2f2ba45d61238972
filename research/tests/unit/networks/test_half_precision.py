"""Mixed precision of trainings."""

from __future__ import annotations

import pytest
import torch

from research.networks.half_precision import autocast


@pytest.mark.parametrize(("setting", "dtype"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_autocast_of_trainings_obeys_the_setting(
    monkeypatch: pytest.MonkeyPatch, setting: str, dtype: torch.dtype
) -> None:
    monkeypatch.setenv("CONTRAFACT_DTYPE", setting)
    with autocast("cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
