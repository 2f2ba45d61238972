"""Measure the effect of editing without a change of meaning: null arm and sham arm against the reconstruction.

    python -m tinyworld.measure.sham --count 48
    python -m tinyworld.measure.sham --count 48 --inversion null_text --minutes 30

For each scene of the split "final-test", the source is inverted under a faultless caption, and edited under this
caption (null arm) and under a paraphrase of it (sham arm, `gateway.methods.paraphrase`). Both are compared with the
reconstruction from the same inversion, by PSNR and by each shipped model's probability of the ground truth.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from evaluator_service.models_under_test.classification import ImageClassifier
from gateway.analysis.certainty import LEVEL, mean_interval
from gateway.jobs.choices import method_defaults
from gateway.methods.inverted import edit_request
from gateway.methods.lance import LanceParameters
from gateway.methods.paraphrase import by_rules
from gateway.model_services.clients import ModelServices
from shared.images import decode
from shared.problems import DeadlineExceeded
from shared.profiles import load_profile
from shared.schemas.diffusion import InversionKind, PromptEdit
from tinyworld.judges.trials import payload, source_picture
from tinyworld.objects.captions import caption
from tinyworld.objects.world import CLASSES, sample_scene
from tinyworld.pictures.rendered_once import Pixels
from tinyworld.system.spawn_services import spawn_services

FIRST = 70_000  # of the scenes
FRACTION = 0.5
INVERSIONS: tuple[InversionKind, ...] = ("direct", "null_text")
ARMS = ("reconstruction", "null", "sham")
Models = dict[str, ImageClassifier]


def arms_of(services: ModelServices, source: Pixels, text: str, parameters: LanceParameters) -> dict[str, Pixels]:
    """Reconstruction, null arm and sham arm of a source image under its caption `text`, as far as they are finite."""
    prompts = [text, by_rules(text, list(CLASSES))]
    edits = [PromptEdit(prompt=prompt, cross_fraction=parameters.cross_fraction) for prompt in prompts]
    reply = services.edit(edit_request(payload(source), parameters, text, edits, [FRACTION]))
    images = dict(zip(ARMS, (reply.reconstruction, reply.images[0][0], reply.images[1][0]), strict=True))
    return {arm: decode(image.png) for arm, image in images.items() if image is not None}


def psnr(image: Pixels, reference: Pixels) -> float:
    """Peak signal-to-noise ratio in dB, of 8-bit images; infinite for equal ones."""
    error = float(np.mean((image.astype(float) - reference.astype(float)) ** 2))
    return float("inf") if error == 0 else 10 * float(np.log10(255**2 / error))


def p_truth(model: ImageClassifier, images: list[Pixels], label: str) -> NDArray[np.float64]:
    """The model's probability of the label for each image."""
    return model.probabilities(images)[:, model.classes.index(label)].astype(np.float64)


def until(numbers: Iterable[int], seconds: float) -> Iterator[int]:
    """The numbers until the time is over, so that the choice of scenes does not depend on results."""
    end = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > end:
            return
        yield number


def measure(services: ModelServices, models: Models, inversion: InversionKind, scenes: Iterable[int]) -> Iterator[str]:
    """Lines of the report for one kind of inversion."""
    parameters_of_method = {**method_defaults("lance", load_profile("tiny")), "inversion": inversion}
    parameters = LanceParameters.model_validate(parameters_of_method)
    drift: dict[tuple[str, str], list[float]] = defaultdict(list)
    alike: dict[str, list[float]] = defaultdict(list)
    for number in scenes:
        scene = sample_scene("final-test", FIRST + number)
        try:
            arms = arms_of(services, source_picture(scene), caption(scene, number), parameters)
        except DeadlineExceeded:
            yield f"{inversion}: ended before image {number}, whose edit took longer than its deadline"
            break
        if len(arms) < len(ARMS):
            continue
        for arm in ("null", "sham"):
            alike[arm].append(psnr(arms[arm], arms["reconstruction"]))
        for name, model in models.items():
            before, null, sham = p_truth(model, [arms[arm] for arm in ARMS], scene.label)
            drift["null - reconstruction", name].append(null - before)
            drift["sham - reconstruction", name].append(sham - before)
            drift["sham - null", name].append(sham - null)
    for arm, values in alike.items():
        yield f"{inversion}: {arm} arm and reconstruction: median PSNR {np.median(values):.1f} dB (n = {len(values)})"
    for (origin, name), values in drift.items():
        points = np.asarray(values)
        interval = mean_interval(points, LEVEL, 0)
        yield (
            f"{inversion}: {origin}, {name}: {100 * points.mean():+.2f} points of p(truth), 95 % interval "
            f"{100 * interval.low:+.2f} to {100 * interval.high:+.2f} (n = {len(points)})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=48, help="source images, at most")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no image after this time")
    parser.add_argument("--inversion", choices=INVERSIONS, help="default: both")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    profile = load_profile("tiny")
    weights = profile.evaluator.models_under_test
    models = {name: ImageClassifier(of_model, device="cpu") for name, of_model in weights.items()}
    with spawn_services("tiny", ["diffusion_service"]) as services:
        for inversion in [arguments.inversion] if arguments.inversion else INVERSIONS:
            scenes = until(range(arguments.count), 60 * arguments.minutes)
            for line in measure(services, models, inversion, scenes):
                print(line, flush=True)


if __name__ == "__main__":
    main()
