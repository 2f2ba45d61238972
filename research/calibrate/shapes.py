"""Set the thresholds of the checks `shapes` and `things`: `python -m research.calibrate.shapes PROFILE --write`.

PROFILE is the name of a shipped profile, or a file, whose `[evaluator.segmenter]` knows the roads. The truth is the
renderer's. For each scene of the split "calibration" the segmenter gets these images, after a round trip through the
shipped autoencoder, which degrades details as generators do:

    good      one look changed (time, weather, season, ...): every shape is where it was
    shifted   the same picture, shifted by 8 to 16 of 128 pixels
    moved     the same looks of another layout: geometry, place, what stands where
    gone      the good picture with its largest thing painted over

An image is invalid if the mask is wrong for it; a missing edit leaves the mask correct. As in
`research.calibrate.checks`, thresholds are set per factor, and the printed errors are cross-validated over scenes.
`--write` puts the thresholds set on all scenes into PROFILE.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import torch

from evaluator_service.models_under_test.kinds.segmentation import ImageSegmenter
from evaluator_service.shapes import shapes_reply
from gateway.methods.checks import ImageSignals, find_shapes
from gateway.methods.counterfactual import FACTORS, Change, Edit, MethodImage, TaskDescription
from research.calibrate.broken import Trial
from research.calibrate.thresholds import held_out_scores, table, thresholds, toml, with_thresholds
from research.datasets.round_trips import through_autoencoder
from research.judges.trials import payload
from shared.media.images import decode
from shared.media.label_maps import VOID
from shared.profiles.evaluator import ShapeJudge
from shared.profiles.profile import load_profile, shipped_profiles
from shared.schemas.evaluation import ShapesReply, ShapesRequest
from tinyworld.drawing.canvas import Image
from tinyworld.roads.render import Rendering, render
from tinyworld.roads.world import CLASSES, EDIT_FACTOR, LOOKS, SHAPES, THINGS, Scene, sample_scene

CHECKS = ("shapes", "things")
NOTE = "# Made by `python -m research.calibrate.shapes --write`; they belong to [evaluator.segmenter].\n"
NEAREST, FARTHEST = 8, 16  # pixels of 128 by which pictures are shifted
TASK = TaskDescription("segment the road scene", mask_classes=CLASSES[1:], things=THINGS)


class ShapeEvaluator:
    """The evaluator's answer on shapes, in this process."""

    def __init__(self, segmenter: ShapeJudge) -> None:
        self._names, self._segmenter = segmenter, ImageSegmenter(segmenter, device="cpu")

    def shapes(self, request: ShapesRequest) -> ShapesReply:
        """As `POST /v1/shapes`."""
        images = [decode(payload.png) for payload in (request.source, *request.images)]
        places = self._names.places(self._segmenter.classes, request.classes)
        return shapes_reply(request, self._segmenter.run(images), places)


@dataclass(frozen=True, slots=True)
class ShapeImage:
    """An image, its kind (whether its shapes are those of its scene), and the look that was changed in it."""

    kind: str
    look: str
    image: Image


def shape_images(scene: Scene, side: int = 128) -> Iterator[ShapeImage]:
    """Images of a scene, one of each kind, with one look changed; the looks alternate over scenes."""
    random = np.random.default_rng((0x5A9E, scene.geometry_seed))
    look = tuple(LOOKS)[scene.geometry_seed % len(LOOKS)]
    other_values = [value for value in LOOKS[look] if value != getattr(scene, look)]
    changed = scene.changed(**{look: other_values[int(random.integers(len(other_values)))]})
    good = render(changed, side, side)
    yield ShapeImage("good", look, good.image)
    far = max(1, round(side / 128 * int(random.integers(NEAREST, FARTHEST + 1))))
    yield ShapeImage("shifted", look, shift(good.image, ((far, 0), (-far, 0), (0, far), (0, -far))[random.integers(4)]))
    yield ShapeImage("moved", look, render(elsewhere(changed), side, side).image)
    if good.instance_classes:
        yield ShapeImage("gone", look, without_largest(good))


def elsewhere(scene: Scene) -> Scene:
    """A scene of the same looks with another layout and other things."""
    shapes = {
        name: values[(values.index(getattr(scene, name)) + max(1, len(values) // 2)) % len(values)]
        for name, values in SHAPES.items()
    }
    return replace(scene.changed(**shapes), geometry_seed=scene.geometry_seed + 1)


def shift(image: Image, by: tuple[int, int]) -> Image:
    """Shifted by (down, right) pixels, the border filled by reflection."""
    wide = np.pad(image, ((FARTHEST, FARTHEST), (FARTHEST, FARTHEST), (0, 0)), mode="reflect")
    down, right = FARTHEST - by[0], FARTHEST - by[1]
    return np.ascontiguousarray(wide[down : down + image.shape[0], right : right + image.shape[1]])


def without_largest(rendering: Rendering) -> Image:
    """An image with its largest vehicle or pedestrian painted over."""
    largest = max(rendering.instance_classes, key=lambda number: int((rendering.instances == number).sum()))
    there = cv2.dilate((rendering.instances == largest).astype(np.uint8), np.ones((7, 7), np.uint8))
    return np.asarray(cv2.inpaint(rendering.image, there, 3, cv2.INPAINT_TELEA), np.uint8)


def trials(
    judge: ShapeEvaluator, scenes: Sequence[Scene], through: Callable[[Image], Image], side: int = 128
) -> tuple[list[Trial], int]:
    """Scored images of all kinds after `through` (n × h × w × 3), and the number of scenes that cannot be judged.

    Scenes without things that the segmenter finds have all of them where they were (`things` is 1).
    """
    scored, silent = [], 0
    for scene in scenes:
        shape_set = list(shape_images(scene, side))
        drawn = render(scene, side, side)
        mask = np.where(drawn.classes == 0, VOID, drawn.classes - 1).astype(np.uint8)
        degraded = through(np.stack([shape_image.image for shape_image in shape_set]))
        source = MethodImage(str(scene.geometry_seed), payload(drawn.image), None, payload(mask))
        found = find_shapes(judge, source, TASK, [payload(image) for image in degraded])
        scores = [ImageSignals(shapes=outcome).scores() for outcome in found]
        if "shapes" not in scores[0]:
            silent += 1
            continue
        scored += [
            Trial(scene.geometry_seed, shape_image.kind, edit_of(shape_image.look), {"things": 1.0, **score})
            for shape_image, score in zip(shape_set, scores, strict=True)
        ]
    return scored, silent


def edit_of(look: str) -> Edit:
    """An edit of a look, as far as thresholds ask: its factor."""
    factor = next(factor for factor in FACTORS if factor == EDIT_FACTOR[look])
    return Edit((Change(factor, "", look, "", look),), "", look)


def with_shape_thresholds(profile: str, trials: Sequence[Trial]) -> str:
    """A profile's text with the thresholds of both checks."""
    return with_thresholds(profile.replace(NOTE, ""), toml(thresholds(trials, CHECKS), NOTE), CHECKS)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", help="a shipped profile's name, or a profile's file, with [evaluator.segmenter]")
    parser.add_argument("--scenes", type=int, default=120)
    parser.add_argument("--write", action="store_true", help="put the thresholds into the profile")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    profile = load_profile(arguments.profile)
    path = shipped_profiles().get(arguments.profile, Path(arguments.profile))
    if profile.evaluator.segmenter is None:
        raise SystemExit("the profile names no segmenter; add [evaluator.segmenter]")
    scenes = [sample_scene("calibration", index) for index in range(arguments.scenes)]
    scored, silent = trials(ShapeEvaluator(profile.evaluator.segmenter), scenes, through_autoencoder)
    print(f"{len(scored)} pictures of {len(scenes) - silent} scenes; nothing could be said of {silent}")
    judged = held_out_scores(scored, CHECKS)
    print(*table(judged), sep="\n")
    print("\n" + toml(thresholds(scored, CHECKS), NOTE))
    if arguments.write:
        path.write_text(with_shape_thresholds(path.read_text(), scored))


if __name__ == "__main__":
    main()
