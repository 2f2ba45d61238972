"""Validity in the estimate, where the truth is known: `python -m benchmarks.validity`.

Buses of tinyworld *to night*, drawn by the renderer. Of the pictures that take the place of rendered edits a known
share is invalid: another class stands there, or the edit was not made. The checks screen them at the profile's
thresholds, once all of them and once the caption check alone, which lets another class pass; their errors are measured
on other scenes. The models under test are the shipped ones, and the truth
is their effect on all renderer counterfactuals. No generator runs, so the null arm is the source image.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter

from diffusion_service.segmentation import Segmenter
from evaluator_service.models_under_test.classification import ImageClassifier
from gateway.analysis.certainty import LEVEL, mean_interval
from gateway.analysis.validity import Screened, among_valid
from gateway.methods.checks import CHECKS, Scores, Thresholds, check_images, judge
from gateway.methods.counterfactual import SourceImage
from shared.profiles import Profile, load_profile
from shared.schemas.diffusion import RenderReply
from shared.schemas.results import CheckErrors, Interval
from tinyworld.judges.trials import TASK, Evaluator, Proposal, payload, proposal, source_picture
from tinyworld.objects.own_distribution import own_distribution
from tinyworld.objects.pictures import Pixels
from tinyworld.objects.world import CLASSES, Split

RESULTS = Path(__file__).parent / "results" / "validity.json"
Kind = Literal["valid", "class", "unedited"]
INVALID: tuple[Kind, ...] = ("class", "unedited")
LABEL, VALUE = "bus", "night"
EDITS = 2  # of a source image
USED = (CHECKS, ("caption",))


@dataclass(frozen=True, slots=True)
class Edited:
    """One picture that stands for a rendered edit: of which source image, what it is, and the scores that it got."""

    source: int
    asked: Proposal
    kind: Kind
    picture: Pixels
    scores: Scores


@dataclass(frozen=True, slots=True)
class Found:
    """What the analysis made of one model under test beside the truth; effects in −1 … 1."""

    model: str
    checks: tuple[str, ...]
    errors: CheckErrors
    accepted: int
    truth: float
    observed: float
    observed_interval: Interval
    estimate: float
    interval: Interval
    valid_share: float
    valid_estimate: float


class Checks:
    """The scores of the profile's automatic checks, in this process."""

    def __init__(self, profile: Profile) -> None:
        if profile.diffusion.segmenter is None:
            raise SystemExit("the profile names no segmenter; add [diffusion.segmenter]")
        self._evaluator = Evaluator(profile)
        self._segmenter = Segmenter(profile.diffusion.segmenter, profile.diffusion.keep_labels, device="cpu")

    def scores(self, asked: Proposal, pictures: Sequence[Pixels]) -> list[Scores]:
        """How each picture scores as the edit that was asked for."""
        source = source_picture(asked.scene)
        image = SourceImage(str(asked.scene.geometry_seed), payload(source), asked.scene.label)
        images = [payload(picture) for picture in pictures]
        keep = payload(self._segmenter.keep_mask(source))
        reply = RenderReply(images=images, controls={}, keep_mask=keep, evaluations=0)
        edits = [asked.edit] * len(pictures)
        judged = check_images(self._evaluator, image, TASK, reply, edits, {})  # type: ignore[arg-type]
        return [scores for _, scores in judged]


def to_night(split: Split, count: int) -> list[Proposal]:
    """The first buses of a split that are not at night, as the models under test know them, each with its edit."""
    found: list[Proposal] = []
    index = 0
    while len(found) < count:
        scene = own_distribution(index, split).changed(label=LABEL)
        index += 1
        if scene.time == VALUE:
            continue
        tries = (proposal(scene, "time", np.random.default_rng((index, attempt))) for attempt in range(8))
        asked = next((one for one in tries if one is not None and one.wanted.time == VALUE), None)
        if asked is not None:
            found.append(asked)
    return found


def picture(asked: Proposal, kind: Kind, random: np.random.Generator) -> Pixels:
    """What stands for the rendered edit."""
    if kind == "valid":
        return source_picture(asked.wanted)
    if kind == "unedited":
        return source_picture(asked.scene)
    others = [name for name in CLASSES if name != LABEL]
    return source_picture(asked.wanted.changed(label=others[int(random.integers(len(others)))]))


def edited(checks: Checks, sources: Sequence[Proposal], kinds: Sequence[Sequence[Kind]]) -> list[Edited]:
    """Pictures of the given kinds of each source image, scored."""
    random = np.random.default_rng(2)
    found: list[Edited] = []
    for number, (asked, wanted) in enumerate(zip(sources, kinds, strict=True)):
        pictures = [picture(asked, kind, random) for kind in wanted]
        scored = zip(wanted, pictures, checks.scores(asked, pictures), strict=True)
        found += [Edited(number, asked, *rest) for rest in scored]
    return found


def accepted(one: Edited, thresholds: Thresholds) -> bool:
    """The verdict at these thresholds."""
    return judge(one.scores, one.asked.edit, thresholds).accepted


def errors_of(found: Sequence[Edited], thresholds: Thresholds) -> CheckErrors:
    """What these thresholds do with pictures whose validity is known."""
    passed = {
        valid: [accepted(o, thresholds) for o in found if (o.kind == "valid") == valid] for valid in (True, False)
    }
    return CheckErrors(
        valid=len(passed[True]),
        valid_accepted=sum(passed[True]),
        invalid=len(passed[False]),
        invalid_accepted=sum(passed[False]),
    )


def assess(
    name: str,
    model: ImageClassifier,
    sources: Sequence[Proposal],
    found: Sequence[Edited],
    errors: CheckErrors,
    thresholds: Thresholds,
) -> Found:
    """One model under test: the truth, what is observed among the accepted, and the effect among the valid."""

    def right(pictures: Sequence[Pixels]) -> NDArray[np.float64]:
        place = model.classes.index(LABEL)
        return np.asarray([float(row.argmax() == place) for row in model.probabilities(pictures)])

    null = right([source_picture(asked.scene) for asked in sources])
    truth = float((right([source_picture(asked.wanted) for asked in sources]) - null).mean())
    verdicts = [accepted(one, thresholds) for one in found]
    kept = [one for one, passed in zip(found, verdicts, strict=True) if passed]
    place = np.array([one.source for one in kept])
    _, inverse, counts = np.unique(place, return_inverse=True, return_counts=True)
    correct = np.bincount(inverse, right([one.picture for one in kept]) - null[place]) / counts
    screened = Screened(np.array([one.source for one in found]), np.array(verdicts))
    among = among_valid(correct, LEVEL, errors, screened, seed=3)
    return Found(
        model=name,
        checks=tuple(thresholds),
        errors=errors,
        accepted=len(kept),
        truth=truth,
        observed=float(correct.mean()),
        observed_interval=mean_interval(correct, LEVEL, seed=3),
        estimate=among.estimate,
        interval=among.interval,
        valid_share=float(np.mean([one.kind == "valid" for one in kept])),
        valid_estimate=among.valid,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=60)
    parser.add_argument("--calibration", type=int, default=80, help="valid pictures, and as many invalid ones")
    parser.add_argument("--valid", type=float, default=0.6, help="share of the pictures that are valid")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    profile = load_profile("tiny")
    checks = Checks(profile)
    random = np.random.default_rng(1)
    measured = edited(
        checks,
        to_night("calibration", arguments.calibration),
        [("valid", INVALID[number % 2]) for number in range(arguments.calibration)],
    )
    sources = to_night("final-test", arguments.sources)
    kinds: list[list[Kind]] = [
        ["valid" if random.random() < arguments.valid else INVALID[int(random.integers(2))] for _ in range(EDITS)]
        for _ in sources
    ]
    rendered = edited(checks, sources, kinds)
    found = []
    for name, weights in profile.evaluator.models_under_test.items():
        model = ImageClassifier(weights, device="cpu")
        for used in USED:
            limits = {check: profile.thresholds[check] for check in used if check in profile.thresholds}
            found.append(assess(name, model, sources, rendered, errors_of(measured, limits), limits))
    made = {
        "command": f"python -m benchmarks.validity --sources {arguments.sources} --calibration {arguments.calibration} "
        f"--valid {arguments.valid}",
        "rendered": len(rendered),
        "found": TypeAdapter(list[Found]).dump_python(found, mode="json"),
    }
    print(json.dumps(made, indent=1))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
