"""Compare another scorer with that of a profile on rendered images: their scores, verdicts, and what labels say.

    python -m tinyworld.measure.counterfactuals --split calibration --count 420 --out runs/natural-dillema
    python -m tinyworld.measure.scorers runs/natural-dillema --other runs/scorer-8-bit

Both scorers score the images of the folders; every other score is the stored one. The thresholds are the profile's.
Prints, for each method, by how much each score changes and how many verdicts change. For images that
`tinyworld/labels` judges it prints the AUROC of each score, and how many the checks accept, by either scorer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gateway.analysis.validity_model import auroc_interval
from gateway.jobs.choices import method_defaults
from gateway.methods import JobMethod, read_method
from gateway.methods.checks import judge
from gateway.methods.counterfactual import MethodImage, Scores
from gateway.methods.image_scores import score_images
from shared.profiles import Profile, load_profile
from shared.schemas.base import ImagePayload
from tinyworld.judges.label import image_valid, shipped_labels
from tinyworld.judges.labelled import digest_of, edit_of
from tinyworld.judges.records import Record, records
from tinyworld.judges.trials import TASK, Evaluator
from tinyworld.statistics.rates import rate_text

SEED = 1
LEAST = 10  # labelled images of each kind from which an AUROC is printed


@dataclass(frozen=True, slots=True)
class ScoredTwice:
    """An edit's image with the scores and verdicts of the profile's scorer and of the other one.

    `valid`: what the labels say of it; None: nothing, or the labeller could not judge it.
    """

    record: Record
    scores: tuple[Scores, Scores]
    accepted: tuple[bool, bool]
    valid: bool | None


def with_scorer(profile: Profile, folder: Path) -> Profile:
    """The profile with the scorer of a folder of weights."""
    weights = profile.evaluator.scorer.model_copy(update={"path": folder.resolve(), "subfolder": ""})
    return profile.model_copy(update={"evaluator": profile.evaluator.model_copy(update={"scorer": weights})})


def score_twice(folder: Path, profile: Profile, other: Profile) -> Iterator[ScoredTwice]:
    """The edits of a folder of a measuring command that have images, scored by the scorers of both profiles."""
    labels = {label.image: image_valid(label) for label in reversed(shipped_labels())}
    evaluators = Evaluator(profile), Evaluator(other)
    for record in records(folder):
        if record.arm == "edit" and record.image:
            method = read_method(record.method, method_defaults(record.method, profile))
            first, second = (scores_of(folder, record, evaluator) for evaluator in evaluators)
            verdicts = _accepted(record, method, first), _accepted(record, method, second)
            yield ScoredTwice(record, (first, second), verdicts, labels.get(digest_of(folder / record.image)))


def scores_of(folder: Path, record: Record, evaluator: Evaluator) -> Scores:
    """All scores of a record's image, those of the scorer by this evaluator."""
    image, source = (ImagePayload(png=(folder / path).read_bytes()) for path in (record.image, record.source))
    original = MethodImage(record.id, source, record.label)
    (scores,) = score_images(evaluator.embed, original, TASK, [image], [edit_of(record)], words="word" in record.scores)
    return {**record.scores, **scores}


def _accepted(record: Record, method: JobMethod, scores: Scores) -> bool:
    return judge(scores, edit_of(record), method.thresholds, method.spec.checks).accepted


def lines(images: Sequence[ScoredTwice]) -> Iterator[str]:
    """The comparison of the scorers on the images of one method, of which there is at least one."""
    changed = sum(first != second for first, second in (image.accepted for image in images))
    yield f"{len(images)} images: {rate_text(changed, len(images))} of the verdicts change"
    names = [name for name, value in images[0].scores[0].items() if value != images[0].scores[1][name]]
    for name in names:
        pairs = np.array([[scores[name] for scores in image.scores] for image in images if _has(image, name)])
        change = np.abs(pairs[:, 0] - pairs[:, 1])
        yield f"{name:12} changes by {change.mean():.4f} on average, {change.max():.4f} at most"
    labelled = [image for image in images if image.valid is not None]
    valid = np.array([image.valid for image in labelled], np.bool_)
    if min(valid.sum(), (~valid).sum()) < LEAST:
        yield f"{int(valid.sum())} labelled valid, {int((~valid).sum())} invalid: too few"
        return
    for place, scorer in enumerate(("profile", "other")):
        accepted = np.array([image.accepted[place] for image in labelled], np.bool_)
        yield (
            f"{scorer}'s scorer: accepts {rate_text(int(accepted[valid].sum()), int(valid.sum()))} of the valid ones "
            f"and {rate_text(int(accepted[~valid].sum()), int((~valid).sum()))} of the invalid ones"
        )
    group = np.unique([image.record.source for image in labelled], return_inverse=True)[1].astype(np.int64)
    for name in names:
        has = np.array([_has(image, name) for image in labelled], np.bool_)
        values = np.array([[scores.get(name, np.nan) for scores in image.scores] for image in labelled])[has]
        areas = [auroc_interval(values[:, place], valid[has], group[has], SEED).value for place in (0, 1)]
        yield f"{name:12} AUROC {areas[0]:.3f}, other {areas[1]:.3f} on {int(has.sum())}"


def _has(image: ScoredTwice, name: str) -> bool:
    return all(name in scores for scores in image.scores)


def main() -> None:
    """Print the comparison for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="with counterfactuals.jsonl and its images")
    parser.add_argument("--other", type=Path, required=True, help="folder of the other scorer's weights")
    parser.add_argument("--profile", default="tiny")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    profile = load_profile(arguments.profile)
    other = with_scorer(profile, arguments.other)
    images = [image for folder in arguments.folders for image in score_twice(folder, profile, other)]
    if not images:
        raise SystemExit("these folders have no images; run python -m tinyworld.measure.counterfactuals first")
    for method in sorted({image.record.method for image in images}):
        print(method)
        chosen = [image for image in images if image.record.method == method]
        print(*(f"    {line}" for line in lines(chosen)), sep="\n")


if __name__ == "__main__":
    main()
