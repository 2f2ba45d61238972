"""Fix the thresholds of the checks `shapes` and `things`: `python -m tinyworld.calibrate.shapes PROFILE --write`.

PROFILE is a shipped one's name, or a file, whose `[evaluator.segmenter]` knows the roads. The truth
is the renderer's. Of each scene of the split "calibration" the segmenter sees the picture, and through the shipped
autoencoder, which stands for what generators do to detail:

    good      one look changed (time, weather, season, ...): every shape is where it was
    shifted   the same picture, shifted by 8 to 16 of 128 pixels
    moved     the same looks of another layout: geometry, place, what stands where
    gone      the good picture with its largest thing painted over

Invalid is what the mask is not true of; an edit that was not made leaves it true. As in `calibrate.checks`, thresholds
are fixed per factor, and what is printed was measured on the half of the scenes that they were not fixed on.
`--write` puts thresholds, fixed on all of them, into PROFILE; and the errors as `[calibration.roads]`, unless the
profile has thresholds of other checks, whose errors these are not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import torch

from evaluator_service.models_under_test.segmentation import ImageSegmenter
from evaluator_service.shapes import shapes_reply
from gateway.methods.checks import shape_scores
from gateway.methods.counterfactual import FACTORS, Change, Edit, SourceImage, TaskDescription
from shared.images import decode, encode
from shared.label_maps import VOID
from shared.profiles import ShapeJudge, load_profile, shipped_profiles
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import ShapesReply, ShapesRequest
from tinyworld.calibrate.broken import Trial
from tinyworld.calibrate.check_errors import check_errors, with_errors
from tinyworld.calibrate.checks import held_out, table, thresholds, toml, with_thresholds
from tinyworld.datasets.round_trips import through_autoencoder
from tinyworld.objects.drawing.canvas import Image
from tinyworld.roads.render import RoadRendering, render
from tinyworld.roads.world import CLASSES, EDIT_FACTOR, LOOKS, SHAPES, THINGS, RoadScene, sample_scene

CHECKS = ("shapes", "things")
DATA = "roads"
NOTE = "# Made by `python -m tinyworld.calibrate.shapes --write`; they belong to [evaluator.segmenter].\n"
NEAREST, FARTHEST = 8, 16  # pixels of 128 by which pictures are shifted
TASK = TaskDescription("segment the road scene", mask_classes=CLASSES[1:], things=THINGS)


class Judge:
    """The evaluator's answer on shapes, in this process."""

    def __init__(self, segmenter: ShapeJudge) -> None:
        self._names, self._segmenter = segmenter, ImageSegmenter(segmenter, device="cpu")

    def shapes(self, request: ShapesRequest) -> ShapesReply:
        """As `POST /v1/shapes`."""
        images = [decode(one.png) for one in (request.source, *request.images)]
        places = self._names.places(self._segmenter.classes, request.classes)
        return shapes_reply(request, self._segmenter.label_maps(images), places)


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture, whether its shapes are those of its scene, and the look that was changed in it."""

    kind: str
    look: str
    image: Image


def shown(scene: RoadScene, side: int = 128) -> Iterator[Shown]:
    """What is made of a scene: one of each kind, with one look changed, in which the scenes take turns."""
    random = np.random.default_rng((0x5A9E, scene.geometry_seed))
    look = tuple(LOOKS)[scene.geometry_seed % len(LOOKS)]
    others = [value for value in LOOKS[look] if value != getattr(scene, look)]
    changed = scene.changed(**{look: others[int(random.integers(len(others)))]})
    good = render(changed, side, side)
    yield Shown("good", look, good.image)
    far = max(1, round(side / 128 * int(random.integers(NEAREST, FARTHEST + 1))))
    yield Shown("shifted", look, shifted(good.image, ((far, 0), (-far, 0), (0, far), (0, -far))[random.integers(4)]))
    yield Shown("moved", look, render(elsewhere(changed), side, side).image)
    if good.instance_classes:
        yield Shown("gone", look, without_largest(good))


def elsewhere(scene: RoadScene) -> RoadScene:
    """A scene of the same looks in which everything stands somewhere else, or something else."""
    shapes = {
        name: values[(values.index(getattr(scene, name)) + max(1, len(values) // 2)) % len(values)]
        for name, values in SHAPES.items()
    }
    return replace(scene.changed(**shapes), geometry_seed=scene.geometry_seed + 1)


def shifted(image: Image, by: tuple[int, int]) -> Image:
    """Moved by (down, right) pixels, the rim filled by its mirror image."""
    wide = np.pad(image, ((FARTHEST, FARTHEST), (FARTHEST, FARTHEST), (0, 0)), mode="reflect")
    down, right = FARTHEST - by[0], FARTHEST - by[1]
    return np.ascontiguousarray(wide[down : down + image.shape[0], right : right + image.shape[1]])


def without_largest(rendering: RoadRendering) -> Image:
    """A picture with its largest vehicle or pedestrian painted over."""
    largest = max(rendering.instance_classes, key=lambda number: int((rendering.instances == number).sum()))
    there = cv2.dilate((rendering.instances == largest).astype(np.uint8), np.ones((7, 7), np.uint8))
    return np.asarray(cv2.inpaint(rendering.image, there, 3, cv2.INPAINT_TELEA), np.uint8)


def trials(
    judge: Judge, scenes: Sequence[RoadScene], through: Callable[[Image], Image], side: int = 128
) -> tuple[list[Trial], int]:
    """Scored pictures of all kinds, seen `through` something (n × h × w × 3), and of how many scenes nothing is said.

    Scenes without things that the segmenter finds have all of them where they were (`things` is 1).
    """
    found, silent = [], 0
    for scene in scenes:
        made = list(shown(scene, side))
        drawn = render(scene, side, side)
        mask = np.where(drawn.classes == 0, VOID, drawn.classes - 1).astype(np.uint8)
        seen = through(np.stack([one.image for one in made]))
        source = SourceImage(str(scene.geometry_seed), _payload(drawn.image), None, _payload(mask))
        scores = shape_scores(judge, source, TASK, [_payload(image) for image in seen])
        if "shapes" not in scores[0]:
            silent += 1
            continue
        found += [
            Trial(scene.geometry_seed, one.kind, edit_of(one.look), {"things": 1.0, **score})
            for one, score in zip(made, scores, strict=True)
        ]
    return found, silent


def edit_of(look: str) -> Edit:
    """An edit of a look, as far as thresholds ask: its factor."""
    factor = next(factor for factor in FACTORS if factor == EDIT_FACTOR[look])
    return Edit((Change(factor, "", look, "", look),), "", look)


def written(profile: str, found: Sequence[Trial], judged: Sequence[tuple[Trial, bool, float]], alone: bool) -> str:
    """A profile's text with the thresholds of both checks and, where they are `alone`, with their errors."""
    tables = toml(thresholds(found, CHECKS), NOTE)
    text = with_thresholds(profile.replace(NOTE, ""), tables, CHECKS)
    if not alone:
        return text
    errors = check_errors((trial.factor, trial.kind, accepted) for trial, accepted, _ in judged)
    return with_errors(text, errors, DATA, "segmentation")


def _payload(image: Image) -> ImagePayload:
    return ImagePayload(png=encode(np.ascontiguousarray(image)))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", help="a shipped profile's name, or a profile's file, with [evaluator.segmenter]")
    parser.add_argument("--scenes", type=int, default=120)
    parser.add_argument("--write", action="store_true", help="put thresholds and errors into the profile")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    profile = load_profile(arguments.profile)
    path = shipped_profiles().get(arguments.profile, Path(arguments.profile))
    if profile.evaluator.segmenter is None:
        raise SystemExit("the profile names no segmenter; add [evaluator.segmenter]")
    scenes = [sample_scene("calibration", index) for index in range(arguments.scenes)]
    found, silent = trials(Judge(profile.evaluator.segmenter), scenes, through_autoencoder)
    print(f"{len(found)} pictures of {len(scenes) - silent} scenes; nothing could be said of {silent}")
    judged = held_out(found, CHECKS)
    print(*table(judged), sep="\n")
    alone = set(profile.thresholds) <= set(CHECKS)
    print("\n" + toml(thresholds(found, CHECKS), NOTE))
    if not alone:
        print("the profile has thresholds of other checks, so the errors of these two alone are not for it")
    if arguments.write:
        path.write_text(written(path.read_text(), found, judged, alone))


if __name__ == "__main__":
    main()
