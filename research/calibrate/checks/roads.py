"""Set the thresholds of the image checks of segmentation jobs.

    python -m research.calibrate.checks --domain roads --write

It uses scenes of the split "calibration", which no training and no report uses, and images by the profile's generator
with its defaults for `dillema`, whose fault is known by construction:

    good       the edit, under the source's controls
    unedited   the null arm: the source's own caption
    moved      the edit, under the controls of another layout
    shifted    the good picture, shifted by 8 to 16 of 128 pixels
    gone       the good picture with its largest vehicle or pedestrian painted over

Good images count if both oracles read the edit's value and both oracle segmenters detect the road and the things that
they detect in the source; unedited ones if the oracles do not both read the value. As for objects, thresholds are set
together, per factor, and the printed errors are cross-validated over scenes; `--write` puts the thresholds set on all
scenes into the profile `tiny-roads`.
`research.calibrate.shapes` needs no generator, for the two checks that use a segmenter.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import cv2
import numpy as np
import torch

from gateway.methods.checks import check_images
from gateway.methods.counterfactual import MethodImage, Scores, Thresholds, Verdict
from research.calibrate.broken import Trial
from research.calibrate.shapes import (
    FARTHEST,
    NEAREST,
    TASK,
    ShapeEvaluator,
    elsewhere,
    shift,
    without_largest,
)
from research.calibrate.shapes import NOTE as SHAPES_NOTE
from research.calibrate.thresholds import held_out_scores, table, thresholds, toml, with_thresholds
from research.judges.oracles.roads import READ
from research.judges.protection.domain import ProtectedEdit
from research.judges.protection.gallery import Gallery
from research.judges.protection.roads import ROADS, protected_edit
from research.judges.trials import Evaluator, payload
from shared.media.label_maps import VOID
from shared.profiles.profile import SHIPPED, Profile, load_profile
from shared.schemas.diffusion import RenderReply
from shared.schemas.evaluation import ShapesReply, ShapesRequest
from tinyworld.domain.names import add_domain
from tinyworld.drawing.canvas import Image
from tinyworld.roads.render import Rendering, render
from tinyworld.roads.world import Scene, sample_scene

CHECKS = ("structure", "caption", "shapes", "things", "fit")
PROFILE = "tiny-roads"
NOTE = (
    "# Made by `python -m research.calibrate.checks --domain roads --write`; "
    "they belong to the weights of [evaluator].\n"
)


class Checks(Evaluator):
    """The evaluator's replies that the checks need."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        if profile.evaluator.segmenter is None:
            raise SystemExit("the profile names no segmenter of the checks; add [evaluator.segmenter]")
        self._judge = ShapeEvaluator(profile.evaluator.segmenter)

    def shapes(self, request: ShapesRequest) -> ShapesReply:
        """As `POST /v1/shapes`."""
        return self._judge.shapes(request)

    def scores(self, gallery: Gallery, request: ProtectedEdit, drawn: Rendering, image: Image) -> Scores:
        """The scores of an image, as in a job; `things` is 1 if the segmenter detects none in the source."""
        ((_, image_scores),) = self.verdicts(gallery, request, drawn, [image], {})
        return {"things": 1.0, **image_scores}

    def verdicts(
        self,
        gallery: Gallery,
        request: ProtectedEdit,
        drawn: Rendering,
        images: Sequence[Image],
        thresholds: Thresholds,
    ) -> list[tuple[Verdict, Scores]]:
        """Verdict and scores of images of the edit, as in a job with these thresholds."""
        mask = np.where(drawn.classes == 0, VOID, drawn.classes - 1).astype(np.uint8)
        source = MethodImage(request.id, payload(request.source), None, payload(mask))
        keep = payload(gallery.segmenter.keep_mask(request.source))
        reply = RenderReply(images=[payload(image) for image in images], controls={}, keep_mask=keep, evaluations=0)
        return check_images(self, source, TASK, reply, [request.edit] * len(images), thresholds)  # type: ignore[arg-type]


def trials(gallery: Gallery, checks: Checks, scenes: int) -> tuple[list[Trial], Mapping[str, int]]:
    """Scored images of all kinds for `scenes` edits, and how many of each kind did not show what was requested."""
    scored: list[Trial] = []
    unlike: Counter[str] = Counter()
    for number in range(scenes):
        scene = sample_scene("calibration", number)
        request = protected_edit(f"c{number:04d}", scene, tuple(READ)[number % len(READ)])
        drawn = render(scene)
        for kind, image in pictures(gallery, request, scene):
            if not as_asked(kind, request, image):
                unlike[kind] += 1
                continue
            scores = checks.scores(gallery, request, drawn, image)
            if "shapes" in scores:
                scored.append(Trial(number, kind, request.edit, scores))
            else:
                unlike["nothing of the mask seen in the source"] += 1
    return scored, unlike


def pictures(gallery: Gallery, request: ProtectedEdit, scene: Scene) -> Iterator[tuple[str, Image]]:
    """One image of each kind; `gone` only if the scene has a vehicle or pedestrian."""
    random = np.random.default_rng((0x5A9F, scene.geometry_seed))
    ((_, good, null),) = gallery.draw(request, [gallery.own_arm])
    yield "good", good
    yield "unedited", null
    far = int(random.integers(NEAREST, FARTHEST + 1))
    yield "shifted", shift(good, ((far, 0), (-far, 0), (0, far), (0, -far))[random.integers(4)])
    wrong_source = replace(request, source=np.ascontiguousarray(render(elsewhere(scene)).image))
    ((_, moved, _),) = gallery.draw(wrong_source, [gallery.own_arm])
    yield "moved", moved
    rendering = render(scene)
    if rendering.instance_classes:
        yield "gone", without_largest(replace(rendering, image=good))


def as_asked(kind: str, request: ProtectedEdit, image: Image) -> bool:
    """Whether the judges read what an image of this kind should show; moved and painted-over ones need no check."""
    if kind not in ("good", "unedited"):
        return True
    before, now = ROADS.read([request, request], [request.source, image])
    if kind == "unedited":
        return not now.shown
    return now.shown and all(
        is_there or not was for was, is_there in zip(before.recognised, now.recognised, strict=True)
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_domain(parser)
    parser.add_argument("--scenes", type=int, default=120)
    parser.add_argument("--write", action="store_true", help=f"put the thresholds into shared/profiles/{PROFILE}.toml")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    profile = load_profile(PROFILE)
    ROADS.load_judges()
    scored, unlike = trials(Gallery(profile, ROADS), Checks(profile), arguments.scenes)
    print(f"{len(scored)} trials; left out:", dict(unlike))
    judged = held_out_scores(scored, CHECKS)
    print(*table(judged), sep="\n")
    tables = toml(thresholds(scored, CHECKS), NOTE)
    print("\n" + tables)
    if arguments.write:
        path = SHIPPED / f"{PROFILE}.toml"
        path.write_text(with_thresholds(path.read_text().replace(NOTE, "").replace(SHAPES_NOTE, ""), tables))
