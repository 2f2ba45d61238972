"""Measure captioner, scorer and autoencoder on final-test renders: `python -m research.measure.models`.

Combinations of factors that training saw and withheld ones are reported separately, with Wilson intervals. For the
language model see `research.measure.language`, for generated images `research.measure.counterfactuals`. The scenes
differ from those of the model cards.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import count as numbers
from itertools import islice

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoProcessor, Blip2ForConditionalGeneration

from evaluator_service.similarity import Scorer
from gateway.methods.image_scores import TEMPLATES
from research.datasets.round_trips import through_autoencoder
from research.objects.pictures import render_pair
from research.pictures.rendered_once import Pixels
from research.statistics.rates import rate_text
from research.system.folders import WEIGHTS
from research.train.captioner import captions_of
from shared.chunks import chunks
from shared.profiles.profile import load_profile
from tinyworld.objects.captions import read
from tinyworld.objects.world import CLASSES, FACTORS, Scene, sample_scene, scene_factors, withheld

FIRST = 80_000


def captioner(scenes: Sequence[Scene], images: Sequence[Pixels]) -> list[str]:
    """Rate of captions with all stated factors right; per factor, the rate and the share of captions that state it."""
    folder = WEIGHTS / "captioner"
    model = Blip2ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    texts = captions_of(model, AutoProcessor.from_pretrained(folder), list(images))
    stated = [read(text) for text in texts]
    factors_of_scenes = [scene_factors(scene) for scene in scenes]
    right = [
        "label" in stated_factors and all(true.get(factor) == value for factor, value in stated_factors.items())
        for stated_factors, true in zip(stated, factors_of_scenes, strict=True)
    ]
    lines = [f"every stated factor right: {rate_text(sum(right), len(right))}"]
    for factor in FACTORS:
        pairs = [
            (stated_factors[factor], true.get(factor))
            for stated_factors, true in zip(stated, factors_of_scenes, strict=True)
            if factor in stated_factors
        ]
        if pairs:
            of_all = f"stated in {len(pairs) / len(texts):.0%} of captions"
            lines.append(f"  {factor}: {rate_text(sum(a == b for a, b in pairs), len(pairs))}, {of_all}")
    return lines


def scorer(scenes: Sequence[Scene], images: Sequence[Pixels]) -> list[str]:
    """Zero-shot accuracy on the class, with the prompts of the checks."""
    model = Scorer(load_profile("tiny").evaluator.scorer, device="cpu")
    prompts = model.embed_texts([template.format(label) for label in CLASSES for template in TEMPLATES])
    classes = prompts.reshape(len(CLASSES), len(TEMPLATES), -1).mean(axis=1)
    classes /= np.linalg.norm(classes, axis=1, keepdims=True)
    embeddings = np.concatenate([model.embed_images(chunk) for chunk in chunks(images, 50)])
    named = (embeddings @ classes.T).argmax(1)
    truth = np.array([CLASSES.index(scene.label) for scene in scenes])
    lines = [f"class, zero-shot: {rate_text(int((named == truth).sum()), len(truth))}"]
    for place, label in enumerate(CLASSES):
        in_class = truth == place
        lines.append(f"  {label}: {rate_text(int((named == truth)[in_class].sum()), int(in_class.sum()))}")
    return lines


def autoencoder(scenes: Sequence[Scene], images: Sequence[Pixels]) -> list[str]:
    """PSNR of the round trip, in dB: of the mean squared error over all images, and quantiles over images."""
    pictures = np.stack(images)
    errors = ((through_autoencoder(pictures).astype(np.float64) - pictures) ** 2).mean(axis=(1, 2, 3))
    values = np.sort(decibels(errors))
    worst, middle = values[len(values) // 10], values[len(values) // 2]
    return [
        f"round trip: {float(decibels(errors.mean())):.2f} dB over {len(values)} pictures; "
        f"median {middle:.2f}, worst tenth below {worst:.2f}"
    ]


def decibels(squared_error: NDArray[np.float64] | np.floating) -> NDArray[np.float64]:
    """Peak signal-to-noise ratio of mean squared errors of 8-bit images."""
    return np.asarray(10 * np.log10(255**2 / squared_error))


MODELS: dict[str, Callable[[Sequence[Scene], Sequence[Pixels]], list[str]]] = {
    "captioner": captioner,
    "scorer": scorer,
    "autoencoder": autoencoder,
}


def scenes_of(count: int, *, rare: bool) -> list[Scene]:
    """Final-test scenes of withheld (`rare`) or of other combinations."""
    all_scenes = (sample_scene("final-test", FIRST + index) for index in numbers())
    return list(islice((scene for scene in all_scenes if withheld(scene) == rare), count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=600, help="pictures of combinations that the generator's side saw")
    parser.add_argument("--withheld", type=int, default=200, help="pictures of combinations that it did not")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    for rare, count in ((False, arguments.count), (True, arguments.withheld)):
        if not count:
            continue
        scenes = scenes_of(count, rare=rare)
        images = [render_pair(scene)[0] for scene in scenes]
        for name in arguments.models:
            print(f"== {name}, combinations {'withheld' if rare else 'seen'}")
            print(*MODELS[name](scenes, images), sep="\n", flush=True)


if __name__ == "__main__":
    main()
