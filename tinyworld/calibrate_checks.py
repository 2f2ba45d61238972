"""Fix the thresholds of the image checks for the shipped scorer: `python -m tinyworld.calibrate_checks --write`.

On scenes of the split "calibration", on which nothing is trained and nothing is reported. First drawings, whose truth
is known: renderer counterfactuals, which ought to pass, beside broken ones (another class in the object's place, the
object gone, the edit not made), which one check each ought to refuse. Then, where the generator's weights are there,
what it makes of such edits, good or broken as the shipped oracles judge (all of them must agree).

A threshold is the one with the least sum of two rates, good ones refused and broken ones let through (Youden's index),
among those that refuse at most `REFUSED` of the good ones. It is found per factor on drawings, and on generated images
of all factors where there are enough; the milder one is taken, so that neither are refused too often.
`--write` puts the thresholds into the shipped profile `tiny`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem
from diffusion_service.segmentation import Segmenter
from diffusion_service.stable_diffusion import load
from evaluator_service.similarity import Scorer
from evaluator_service.structure import agreement
from gateway.methods.checks import CHECKS, Scores, Thresholds, check_images, judge
from gateway.methods.counterfactual import FACTORS, Change, Edit, Factor, SourceImage, TaskDescription
from gateway.methods.dillema import DillemaParameters, region_of
from shared.images import decode, encode
from shared.profiles import SHIPPED, Profile, load_profile
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload
from shared.schemas.diffusion import Rendering, RenderReply
from shared.schemas.evaluation import EmbedReply, EmbedRequest, StructureReply, StructureRequest
from shared.seeds import derive_seed
from tinyworld.captions import describe
from tinyworld.factors import scene_factors
from tinyworld.model_card import WEIGHTS
from tinyworld.oracles import ORACLES, READ, load_oracle, readings
from tinyworld.pictures import Pixels
from tinyworld.render import render
from tinyworld.world import CLASSES, EDIT_FACTOR, FACTOR_VALUES, Scene, sample_scene

REFUSED = 0.1  # of the good counterfactuals, by one check
ENOUGH = 15  # good generated counterfactuals, to go by them too
# Edges hold the object at its size, so the generator cannot follow such an edit, and should not be calibrated on it.
FIELDS = tuple(field for field in EDIT_FACTOR if field != "size")
TASK = TaskDescription("name the vehicle, house or bird", CLASSES)
# Which check ought to refuse what; "" is good.
OUGHT = {"good": "", "class": "label", "gone": "structure", "unedited": "caption"}


@dataclass(frozen=True, slots=True)
class Proposal:
    """An edit of a scene, said in captions, and the scene that it wants."""

    field: str
    edit: Edit
    wanted: Scene

    @property
    def factor(self) -> Factor:
        """Contrafact's factor of the field."""
        return self.edit.changes[0].factor


@dataclass(frozen=True, slots=True)
class Trial:
    """One image that a check sees: drawn or generated, of a kind in `OUGHT`, and the scores that it got."""

    proposal: Proposal
    kind: str
    generated: bool
    image: Pixels
    scores: Scores


class Evaluator:
    """The evaluator's two replies that the checks ask for, in this process."""

    def __init__(self, profile: Profile) -> None:
        self._scorer = Scorer(profile.evaluator.scorer, device="cpu")

    def embed(self, request: EmbedRequest) -> EmbedReply:
        images = self._scorer.embed_images([decode(image.png) for image in request.images])
        texts = self._scorer.embed_texts(request.texts)
        return EmbedReply(images=images.tolist(), texts=texts.tolist(), logit_scale=self._scorer.logit_scale)

    def structure(self, request: StructureRequest) -> StructureReply:
        source = decode(request.source.png)
        mask = None if request.mask is None else decode(request.mask.png, "L")
        return StructureReply(agreements=[agreement(source, decode(image.png), mask) for image in request.images])


def proposals(scene: Scene, random: np.random.Generator) -> Iterator[Proposal]:
    """One edit of each field that the scene's caption states, as a faultless language model would write it."""
    seed = derive_seed("calibration", scene.geometry_seed)
    before = describe(scene, seed)
    for field in FIELDS:
        if field not in before.stated:
            continue
        others = [v for v in FACTOR_VALUES[field] if v not in ("none", getattr(scene, field))]
        wanted = scene.changed(**{field: str(others[int(random.integers(len(others)))])})
        after = describe(wanted, seed)
        old, new = ({m.field: m.phrase for m in text.mentions}.get(field, "") for text in (before, after))
        if old and new and before.text != after.text:
            change = Change(_factor(field), old, new, before.stated[field], str(getattr(wanted, field)))
            yield Proposal(field, Edit((change,), before.text, after.text), wanted)


def _factor(field: str) -> Factor:
    return next(factor for factor in FACTORS if factor == EDIT_FACTOR[field])


def drawn(scene: Scene, proposal: Proposal, random: np.random.Generator) -> dict[str, Pixels]:
    """The edit made and broken in three ways, by the renderer, as soft as what a generator draws."""
    good = render(proposal.wanted)
    other = [label for label in CLASSES if label != scene.label][int(random.integers(len(CLASSES) - 1))]
    near = cv2.dilate(good.object_mask.astype(np.uint8), np.ones((7, 7), np.uint8))
    images = {
        "good": good.image,
        "class": render(proposal.wanted.changed(label=other)).image,
        "gone": cv2.inpaint(np.ascontiguousarray(good.image), near, 3, cv2.INPAINT_TELEA),
        "unedited": render(scene).image,
    }
    return {kind: soft(np.asarray(image, np.uint8), random) for kind, image in images.items()}


def soft(image: Pixels, random: np.random.Generator) -> Pixels:
    """Slightly out of focus and noisy."""
    blurred = cv2.GaussianBlur(image, (0, 0), float(random.uniform(0.5, 1.0))).astype(np.float32)
    return np.asarray(np.clip(blurred + random.normal(0, 4, image.shape), 0, 255), np.uint8)


def scored(services: Evaluator, scene: Scene, keep: Pixels, trials: Sequence[Trial]) -> list[Trial]:
    """The trials of one scene with the scores that the gateway would compute."""
    source = SourceImage(str(scene.geometry_seed), _payload(render(scene).image), scene.label)
    done: list[Trial] = []
    size = MAX_IMAGES_PER_MESSAGE - 1
    for some in (trials[start : start + size] for start in range(0, len(trials), size)):
        images = [_payload(trial.image) for trial in some]
        reply = RenderReply(images=images, controls={}, keep_mask=_payload(keep), evaluations=0)
        results = check_images(services, source, TASK, reply, [trial.proposal.edit for trial in some], {})  # type: ignore[arg-type]
        done += [replace(trial, scores=scores) for trial, (_, scores) in zip(some, results, strict=True)]
    return done


def generate(
    editor: ControlNetEditor, scene: Scene, some: Sequence[Proposal], steps: int, guidance: float
) -> list[Trial]:
    """What the generator makes of edits, called good, class or unedited as the oracles judge."""
    source = editor.source(np.ascontiguousarray(render(scene).image))
    key = BatchKey(*source.geometry.padded, steps, guidance, 1.0)
    items = [
        RenderItem(
            source, Rendering(prompt=p.edit.new_caption, region=region_of(p.edit, DillemaParameters()), seed=n), ""
        )
        for n, p in enumerate(some, scene.geometry_seed)
    ]
    images = [one.image for one in editor.render(key, items) if isinstance(one, Rendered)]
    return [
        Trial(proposal, kind, True, image, {})
        for proposal, image, kind in zip(some, images, oracles_say(some, images), strict=True)
    ]


def oracles_say(some: Sequence[Proposal], images: Sequence[Pixels]) -> list[str]:
    """Per image "good", "class" (not the wanted class) or "unedited", as all shipped oracles read it."""
    shipped = [name for name in ORACLES if (WEIGHTS / "oracles" / name / "README.md").exists()]
    rows = zip(*(readings(load_oracle(name), images).values.tolist() for name in shipped), strict=True)
    kinds = []
    for proposal, row in zip(some, rows, strict=True):
        seen = [{name: READ[name][value] for name, value in zip(READ, values, strict=True)} for values in row]
        wanted = scene_factors(proposal.wanted)
        wrong = {field for field in ("label", proposal.field) if any(one[field] != wanted[field] for one in seen)}
        kinds.append("class" if "label" in wrong else "unedited" if wrong else "good")
    return kinds


def threshold(good: NDArray[np.float64], broken: NDArray[np.float64]) -> float:
    """The threshold of the least error under `REFUSED`; in the middle where a whole stretch of them is as good."""
    scores = np.unique(np.concatenate([good, broken]))
    candidates = np.concatenate([scores[:1], (scores[1:] + scores[:-1]) / 2])
    refused = (good[:, None] < candidates).mean(axis=0)
    let_through = (broken[:, None] >= candidates).mean(axis=0)
    error = np.where(refused <= REFUSED, refused + let_through, np.inf)
    best = candidates[np.isclose(error, error.min())]
    return float((best[0] + best[-1]) / 2)


def thresholds(trials: Sequence[Trial]) -> dict[str, dict[str, float]]:
    """Per check: of each factor, and of all together as `default`."""
    factors = sorted({trial.proposal.factor for trial in trials})
    return {check: {factor or "default": _mild(trials, check, factor) for factor in ("", *factors)} for check in CHECKS}


def _mild(trials: Sequence[Trial], check: str, factor: str) -> float:
    """The milder of the thresholds by drawings of the factor and by generated images of all factors."""
    drawings = [t for t in trials if not t.generated and factor in ("", t.proposal.factor)]
    broken_kind = next(kind for kind, ought in OUGHT.items() if ought == check)
    broken = _scores(drawings, check, broken_kind)
    found = [threshold(_scores(drawings, check, "good"), broken)]
    generated = _scores([t for t in trials if t.generated], check, "good")
    if len(generated) >= ENOUGH:
        found.append(threshold(generated, broken))
    return round(min(found), 4)


def _scores(trials: Sequence[Trial], check: str, kind: str) -> NDArray[np.float64]:
    return np.array([trial.scores[check] for trial in trials if trial.kind == kind])


def rates(trials: Sequence[Trial], limits: Thresholds) -> dict[tuple[str, bool, str], tuple[int, int]]:
    """(factor, generated, kind) → how many trials, and how many of them all checks accept."""
    counts: dict[tuple[str, bool, str], tuple[int, int]] = {}
    for trial in trials:
        accepted = judge(trial.scores, trial.proposal.edit, limits).accepted
        for factor in (trial.proposal.factor, "all"):
            count, passed = counts.get((factor, trial.generated, trial.kind), (0, 0))
            counts[factor, trial.generated, trial.kind] = (count + 1, passed + accepted)
    return counts


NOTE = "# Made by `python -m tinyworld.calibrate_checks --write`; they belong to the scorer's weights.\n"


def toml(limits: Mapping[str, Mapping[str, float]]) -> str:
    """The profile's tables of thresholds."""
    tables = [
        f"[thresholds.{check}]\n" + "".join(f"{factor} = {value}\n" for factor, value in values.items())
        for check, values in limits.items()
    ]
    return NOTE + "\n".join(tables)


def with_thresholds(profile: str, tables: str) -> str:
    """A profile's text with these tables of thresholds at its end instead of those that it had."""
    rest = re.sub(r"(?ms)^\[thresholds\..*?(?=^\[(?!thresholds)|\Z)", "", profile.replace(NOTE, ""))
    return f"{rest.rstrip()}\n\n{tables}"


def collect(profile: Profile, scenes: int, generated: int, steps: int, guidance: float) -> list[Trial]:
    """All trials: `scenes` scenes with drawings, the first `generated` of them also through the generator."""
    services = Evaluator(profile)
    if profile.diffusion.segmenter is None:
        raise SystemExit("the profile names no segmenter; add [diffusion.segmenter]")
    segmenter = Segmenter(profile.diffusion.segmenter, profile.diffusion.keep_labels, device="cpu")
    editor = None
    if generated:
        editor = ControlNetEditor(
            load(profile.diffusion.base, profile.diffusion.controlnets["canny"], device="cpu"), segmenter
        )
    trials: list[Trial] = []
    for index in range(scenes):
        random = np.random.default_rng((0xCC, index))
        scene = sample_scene("calibration", index)
        asked = list(proposals(scene, random))
        of_scene = [Trial(p, kind, False, i, {}) for p in asked for kind, i in drawn(scene, p, random).items()]
        if editor is not None and index < generated:
            of_scene += generate(editor, scene, asked, steps, guidance)
        keep = segmenter.keep_mask(np.ascontiguousarray(render(scene).image))
        trials += scored(services, scene, keep, of_scene)
    return trials


def _payload(image: Pixels) -> ImagePayload:
    return ImagePayload(png=encode(np.ascontiguousarray(image)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=70, help="scenes to draw")
    parser.add_argument("--generated", type=int, default=10, help="of them, how many the generator edits too")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--guidance", type=float, default=2.5)
    parser.add_argument("--write", action="store_true", help="put the thresholds into shared/profiles/tiny.toml")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trials = collect(load_profile("tiny"), arguments.scenes, arguments.generated, arguments.steps, arguments.guidance)
    limits = thresholds(trials)
    counts = rates(trials, limits)
    for (factor, generated, kind), (count, passed) in sorted(counts.items()):
        print(f"{factor:<12} {'generated' if generated else 'drawn':<10} {kind:<9} {passed:4d} of {count:4d} accepted")
    print("\n" + toml(limits))
    if arguments.write:
        path = SHIPPED / "tiny.toml"
        path.write_text(with_thresholds(path.read_text(), toml(limits)))


if __name__ == "__main__":
    main()
