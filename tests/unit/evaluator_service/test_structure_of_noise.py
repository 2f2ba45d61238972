"""Every shipped profile refuses noise by the source's outlines: corrected for chance, noise keeps none of them."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from evaluator_service.model import agreement
from shared.profiles.profile import load_profile, shipped_profiles
from tinyworld.objects.render import render
from tinyworld.objects.world import sample_scene


@pytest.mark.parametrize("side", [128, 512])
@pytest.mark.parametrize("name", shipped_profiles())
def test_every_shipped_profile_refuses_noise(name: str, side: int) -> None:
    threshold = load_profile(name).thresholds["structure"]["default"]
    random = np.random.default_rng(0)
    for index in range(5):
        source = np.asarray(cv2.resize(render(sample_scene("demo", index)).image, (side, side)), np.uint8)
        noise = random.integers(0, 256, source.shape, dtype=np.uint8)
        assert agreement(source, noise) < threshold
        assert agreement(source, source) > threshold
