"""Measure how well the scorer says which images show a value: `python -m tinyworld.measure.own_images`.

Scenes and their captions are drawn, so the value of each image is known. As in a job, the texts of a value are captions
of edits that exchange it for others. The model under test plays no part.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evaluator_service.similarity import Scorer
from gateway.analysis.own_images import value_probabilities
from gateway.results.own_images import CAPTIONS
from shared.chunks import chunks
from shared.profiles import load_profile
from tinyworld.objects.captions import caption
from tinyworld.objects.render import render
from tinyworld.objects.world import Scene, sample_scene
from tinyworld.statistics.rates import fraction_text

VALUES = (("time", "night"), ("weather", "rain"), ("weather", "snow"), ("background", "beach"))
CAPTIONED = 60  # scenes whose captions are the texts


def texts_of(scenes: Sequence[Scene], field: str, value: str) -> dict[str, list[str]]:
    """Captions with the value and with each value that it replaces, up to `CAPTIONS` of each."""
    texts: dict[str, list[str]] = {value: []}
    for number, scene in enumerate(scenes):
        old = str(getattr(scene, field))
        if old != value:
            for name, shown in ((old, scene), (value, scene.changed(**{field: value}))):
                texts_of_value = texts.setdefault(name, [])
                if len(texts_of_value) < CAPTIONS:
                    texts_of_value.append(caption(shown, number))
    return texts


def showing(scorer: Scorer, images: NDArray[np.float64], texts: dict[str, list[str]]) -> NDArray[np.bool_]:
    """Whether each image, a row of unit vectors, shows the first value of `texts` rather than another."""
    means = np.stack([scorer.embed_texts(texts_of_value).mean(axis=0) for texts_of_value in texts.values()])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return np.asarray(value_probabilities(images, means, scorer.logit_scale).argmax(axis=1) == 0)


def main() -> None:
    """Print recall and precision of each value."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=400)
    scenes = [sample_scene("final-test", index) for index in range(parser.parse_args().scenes)]
    scorer = Scorer(load_profile("tiny").evaluator.scorer, device="cpu")
    images = np.concatenate(
        [scorer.embed_images([render(scene).image for scene in chunk]) for chunk in chunks(scenes, 50)]
    )
    captioned = [sample_scene("demo", index) for index in range(CAPTIONED)]
    for field, value in VALUES:
        shows = showing(scorer, images, texts_of(captioned, field, value))
        true = np.asarray([getattr(scene, field) == value for scene in scenes])
        hits = int((shows & true).sum())
        recall, precision = fraction_text(hits, int(true.sum())), fraction_text(hits, int(shows.sum()))
        print(f"{value}: shown in {true.sum()}; recall {recall}; precision {precision}")


if __name__ == "__main__":
    main()
