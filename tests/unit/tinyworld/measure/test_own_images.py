"""The scorer's choice of images that show a value, on drawn scenes whose values are known."""

from __future__ import annotations

import numpy as np

from evaluator_service.similarity import Scorer
from gateway.results.own_images import CAPTIONS
from shared.profiles import load_profile
from tinyworld.measure.own_images import showing, texts_of
from tinyworld.objects.render import render
from tinyworld.objects.world import sample_scene

CAPTIONED = [sample_scene("demo", index) for index in range(40)]


def test_texts_are_of_the_value_and_of_those_that_it_replaces() -> None:
    texts = texts_of(CAPTIONED, "time", "night")
    assert next(iter(texts)) == "night"
    assert set(texts) == {"night", "day", "sunset"}
    assert all(0 < len(captions) <= CAPTIONS for captions in texts.values())


def test_the_trained_scorer_tells_night_from_day() -> None:
    scenes = [sample_scene("final-test", index).changed(time=time) for index in range(16) for time in ("day", "night")]
    scorer = Scorer(load_profile("tiny").evaluator.scorer, device="cpu")
    images = scorer.embed_images([render(scene).image for scene in scenes])
    shows = showing(scorer, images, texts_of(CAPTIONED, "time", "night"))
    night = np.asarray([scene.time == "night" for scene in scenes])
    assert (shows == night).mean() > 0.8
