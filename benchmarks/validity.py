"""Evaluate the validity-corrected estimate where the truth is known: `python -m benchmarks.validity`.

The counterfactuals are tinyworld's buses *to night*, drawn by the renderer instead of a generator. A known share of
them is invalid: they show another class, or the edit is missing. The checks screen them at the profile's thresholds:
first all checks, then the caption check alone, which lets another class pass. The checks' errors are measured on other
scenes. The models under test are the shipped ones; the truth is their effect on all renderer counterfactuals. No
generator runs, so the null arm is the source image.
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
from gateway.methods.checks import CHECKS, check_images, judge
from gateway.methods.counterfactual import MethodImage, Scores, Thresholds
from shared.profiles import Profile, load_profile
from shared.schemas.diffusion import RenderReply
from shared.schemas.effects import CheckErrors
from shared.schemas.estimates import Interval
from tinyworld.domain.scenes import Split
from tinyworld.judges.trials import TASK, Evaluator, Proposal, payload, proposal, source_picture
from tinyworld.objects.own_distribution import own_distribution
from tinyworld.objects.world import CLASSES
from tinyworld.pictures.rendered_once import Pixels

RESULTS = Path(__file__).parent / "results" / "validity.json"
Kind = Literal["valid", "class", "unedited"]
INVALID: tuple[Kind, ...] = ("class", "unedited")
LABEL, VALUE = "bus", "night"
EDITS = 2  # per source image
USED = (CHECKS, ("caption",))


@dataclass(frozen=True, slots=True)
class Edited:
    """One picture in place of a rendered edit: its source image, its kind, and its scores."""

    source: int
    proposal: Proposal
    kind: Kind
    picture: Pixels
    scores: Scores


@dataclass(frozen=True, slots=True)
class Measurement:
    """The analysis of one model under test, and the truth; effects in −1 … 1."""

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

    def scores(self, proposal: Proposal, pictures: Sequence[Pixels]) -> list[Scores]:
        """The scores of each picture as a rendering of the proposal's edit."""
        source = source_picture(proposal.scene)
        image = MethodImage(str(proposal.scene.geometry_seed), payload(source), proposal.scene.label)
        images = [payload(picture) for picture in pictures]
        keep = payload(self._segmenter.keep_mask(source))
        reply = RenderReply(images=images, controls={}, keep_mask=keep, evaluations=0)
        edits = [proposal.edit] * len(pictures)
        judged = check_images(self._evaluator, image, TASK, reply, edits, {})  # type: ignore[arg-type]
        return [scores for _, scores in judged]


def to_night(split: Split, count: int) -> list[Proposal]:
    """The first buses of a split that are not at night, from the models' own distribution, each with its edit."""
    proposals: list[Proposal] = []
    index = 0
    while len(proposals) < count:
        scene = own_distribution(index, split).changed(label=LABEL)
        index += 1
        if scene.time == VALUE:
            continue
        tries = (proposal(scene, "time", np.random.default_rng((index, attempt))) for attempt in range(8))
        chosen = next(
            (candidate for candidate in tries if candidate is not None and candidate.target.time == VALUE), None
        )
        if chosen is not None:
            proposals.append(chosen)
    return proposals


def picture(proposal: Proposal, kind: Kind, random: np.random.Generator) -> Pixels:
    """The picture in place of the rendered edit."""
    if kind == "valid":
        return source_picture(proposal.target)
    if kind == "unedited":
        return source_picture(proposal.scene)
    other_classes = [name for name in CLASSES if name != LABEL]
    return source_picture(proposal.target.changed(label=other_classes[int(random.integers(len(other_classes)))]))


def edit_images(checks: Checks, sources: Sequence[Proposal], kinds: Sequence[Sequence[Kind]]) -> list[Edited]:
    """Pictures of the given kinds of each source image, scored."""
    random = np.random.default_rng(2)
    scored_edits: list[Edited] = []
    for number, (proposal_of_source, kinds_of_source) in enumerate(zip(sources, kinds, strict=True)):
        pictures = [picture(proposal_of_source, kind, random) for kind in kinds_of_source]
        scored = zip(kinds_of_source, pictures, checks.scores(proposal_of_source, pictures), strict=True)
        scored_edits += [Edited(number, proposal_of_source, *scores_of_edit) for scores_of_edit in scored]
    return scored_edits


def is_accepted(edit: Edited, thresholds: Thresholds) -> bool:
    """Whether the checks accept a picture at these thresholds."""
    return judge(edit.scores, edit.proposal.edit, thresholds).accepted


def errors_of(edits: Sequence[Edited], thresholds: Thresholds) -> CheckErrors:
    """The checks' errors at these thresholds, on pictures of known validity."""
    passed = {
        valid: [is_accepted(edit, thresholds) for edit in edits if (edit.kind == "valid") == valid]
        for valid in (True, False)
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
    edits: Sequence[Edited],
    errors: CheckErrors,
    thresholds: Thresholds,
) -> Measurement:
    """One model under test: the true effect, the effect among accepted images, and the estimate among valid images."""

    def right(pictures: Sequence[Pixels]) -> NDArray[np.float64]:
        place = model.classes.index(LABEL)
        return np.asarray([float(row.argmax() == place) for row in model.probabilities(pictures)])

    null = right([source_picture(source.scene) for source in sources])
    truth = float((right([source_picture(source.target) for source in sources]) - null).mean())
    verdicts = [is_accepted(edit, thresholds) for edit in edits]
    passed_edits = [edit for edit, passed in zip(edits, verdicts, strict=True) if passed]
    place = np.array([edit.source for edit in passed_edits])
    _, inverse, counts = np.unique(place, return_inverse=True, return_counts=True)
    correct = np.bincount(inverse, right([edit.picture for edit in passed_edits]) - null[place]) / counts
    screened = Screened(np.array([edit.source for edit in edits]), np.array(verdicts))
    among = among_valid(correct, LEVEL, errors, screened, seed=3)
    return Measurement(
        model=name,
        checks=tuple(thresholds),
        errors=errors,
        accepted=len(passed_edits),
        truth=truth,
        observed=float(correct.mean()),
        observed_interval=mean_interval(correct, LEVEL, seed=3),
        estimate=among.estimate,
        interval=among.interval,
        valid_share=float(np.mean([edit.kind == "valid" for edit in passed_edits])),
        valid_estimate=among.valid,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=60)
    parser.add_argument("--calibration", type=int, default=80, help="valid pictures, and as many invalid ones")
    parser.add_argument("--valid", type=float, default=0.6, help="share of the pictures that are valid")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser


def main() -> None:
    arguments = _parser().parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    profile = load_profile("tiny")
    checks = Checks(profile)
    random = np.random.default_rng(1)
    measured = edit_images(
        checks,
        to_night("calibration", arguments.calibration),
        [("valid", INVALID[number % 2]) for number in range(arguments.calibration)],
    )
    sources = to_night("final-test", arguments.sources)
    kinds: list[list[Kind]] = [
        ["valid" if random.random() < arguments.valid else INVALID[int(random.integers(2))] for _ in range(EDITS)]
        for _ in sources
    ]
    rendered = edit_images(checks, sources, kinds)
    measurements = []
    for name, weights in profile.evaluator.models_under_test.items():
        model = ImageClassifier(weights, device="cpu")
        for used in USED:
            limits = {check: profile.thresholds[check] for check in used if check in profile.thresholds}
            measurements.append(assess(name, model, sources, rendered, errors_of(measured, limits), limits))
    record = {
        "command": f"python -m benchmarks.validity --sources {arguments.sources} --calibration {arguments.calibration} "
        f"--valid {arguments.valid}",
        "rendered": len(rendered),
        "found": TypeAdapter(list[Measurement]).dump_python(measurements, mode="json"),
    }
    print(json.dumps(record, indent=1))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
