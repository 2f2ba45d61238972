"""Label maps from logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from evaluator_service.models_under_test.kinds.segmentation import label_map


@pytest.mark.parametrize("outputs", [2, 16, 17, 40])
def test_a_label_map_is_the_same_though_few_outputs_are_resized_at_a_time(outputs: int) -> None:
    logits = torch.randn((outputs, 5, 7), generator=torch.Generator().manual_seed(outputs))
    resized = interpolate(logits[None], size=(23, 31), mode="bilinear", align_corners=False)[0]
    expected = resized.argmax(dim=0).numpy()
    assert (label_map(logits, (23, 31), np.arange(outputs)) == expected).all()
