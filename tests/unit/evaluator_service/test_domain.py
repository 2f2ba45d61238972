"""The shipped discriminants on drawn pictures and on the photographs of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from evaluator_service.model import DomainJudge
from evaluator_service.similarity import Scorer
from gateway.jobs.domain import small_copy
from shared.media.images import Pixels, decode, encode
from shared.profiles.profile import load_profile
from tinyworld.objects.demo import own_distribution as own_objects
from tinyworld.objects.render import render as render_object
from tinyworld.roads.own_distribution import own_distribution as own_roads
from tinyworld.roads.render import render as render_road

DRAWN: dict[str, Callable[[int], Pixels]] = {
    "tiny": lambda index: render_object(own_objects(index, "demo")).image,
    "tiny-roads": lambda index: render_road(own_roads(index, "demo")).image,
}


@pytest.mark.parametrize("profile", DRAWN)
def test_photographs_are_outside_and_the_drawn_demo_is_inside(profile: str) -> None:
    evaluator = load_profile(profile).evaluator
    assert evaluator.domain is not None
    judge = DomainJudge(Scorer(evaluator.scorer, device="cpu"), evaluator.domain.statistics)
    drawn = [DRAWN[profile](index) for index in range(24)]
    large = [np.asarray(Image.fromarray(image).resize((300, 300))) for image in drawn[:8]]
    inside = judge.log_odds([decode(small_copy(encode(image))) for image in [*drawn, *large]])
    assert (inside > 0).mean() < 0.1
    outside = judge.log_odds([decode(small_copy(encode(image))) for image in load_sample_images().images])
    assert (outside > 0).all()
