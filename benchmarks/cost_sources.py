"""The source images and edits that the arms of `cost_of_methods` render, and the judge of the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from diffusion_service.segmentation import Segmenter
from gateway.jobs.choices import method_defaults
from gateway.methods.checks import CHECKS, Pictures, check_images
from gateway.methods.counterfactual import Edit, MethodImage
from gateway.methods.dillema import DillemaParameters
from gateway.methods.inverted import Attempt
from gateway.methods.lance import LANCE_CHECKS, LanceParameters, best
from shared.images import Pixels, decode
from shared.profiles import Profile
from tinyworld.judges.oracles.objects import in_place, judge
from tinyworld.judges.trials import TASK, Evaluator, Proposal, payload, proposals, source_picture
from tinyworld.measure.counterfactuals import oracle_verdict
from tinyworld.objects.pictures import render_pair
from tinyworld.objects.world import Scene, sample_scene

FIRST = 90_000  # the first final-test scene; no model card and no threshold uses the scenes from here on
Method = Literal["lance", "dillema"]


@dataclass(frozen=True, slots=True)
class Source:
    """A scene's picture and its edits, all of the same caption."""

    scene: Scene
    image: Pixels
    proposals: tuple[Proposal, ...]

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits of the caption."""
        return tuple(proposal.edit for proposal in self.proposals)

    @property
    def caption(self) -> str:
        """The caption of the picture, under which it is inverted."""
        return self.edits[0].caption

    @property
    def prompts(self) -> list[str]:
        """The new captions."""
        return [edit.new_caption for edit in self.edits]


def sources(count: int, edits: int) -> list[Source]:
    """`count` scenes of the split "final-test" whose caption states enough fields, with `edits` edits each."""
    chosen_sources: list[Source] = []
    index = FIRST
    while len(chosen_sources) < count:
        scene = sample_scene("final-test", index)
        random = np.random.default_rng((0xC057, index))
        proposed = list(proposals(scene, random))
        if len(proposed) >= edits:
            chosen = random.choice(len(proposed), edits, replace=False)
            chosen_sources.append(Source(scene, source_picture(scene), tuple(proposed[i] for i in chosen)))
        index += 1
    return chosen_sources


class Verdicts(NamedTuple):
    """How many of a source's counterfactuals the checks accept, and how many are good by the oracles."""

    accepted: int
    good: int


class Judge:
    """The profile's checks, as the methods use them, and the oracles.

    A counterfactual is good if both oracles see the object kept and in place, and the edit shown.
    """

    def __init__(self, profile: Profile, segmenter: Segmenter) -> None:
        dillema = DillemaParameters.model_validate(method_defaults("dillema", profile))
        lance = LanceParameters.model_validate(method_defaults("lance", profile))
        nearer = {"caption": {"default": 0.0}, "word": {"default": 0.0}}  # as in `lance.py`
        self._thresholds = {"dillema": dillema.thresholds, "lance": nearer | lance.thresholds}
        self._segmenter, self._evaluator = segmenter, Evaluator(profile)

    def verdicts(
        self, method: Method, fractions: Sequence[float], source: Source, pictures: Sequence[Sequence[Pixels]]
    ) -> Verdicts:
        """The verdicts on pictures per edit, one for each fraction; LANCE's choice stands for a sweep."""
        chosen = [
            self._choose(method, fractions, source, edit, row) for edit, row in zip(source.edits, pictures, strict=True)
        ]
        images = [decode(attempt.image.png) for attempt in chosen if attempt.image is not None]
        placed = in_place(images, [render_pair(source.scene)[1] == 1] * len(images))
        good = 0
        for proposal, readings, located in zip(source.proposals, judge(images), placed, strict=True):
            value = str(getattr(proposal.target, proposal.field))
            reading = oracle_verdict(source.scene, proposal.field, value, True, readings, located)
            good += reading.kept and reading.shown
        return Verdicts(sum(attempt.verdict.accepted for attempt in chosen), good)

    def _choose(
        self, method: Method, fractions: Sequence[float], source: Source, edit: Edit, row: Sequence[Pixels]
    ) -> Attempt:
        images = [payload(picture) for picture in row]
        checked = check_images(
            self._evaluator,  # type: ignore[arg-type]
            MethodImage(str(source.scene.geometry_seed), payload(source.image), source.scene.label),
            TASK,
            Pictures(images, payload(self._segmenter.keep_mask(source.image))),
            [edit] * len(images),
            self._thresholds[method],
            LANCE_CHECKS if method == "lance" else CHECKS,
        )
        results = zip(fractions, images, checked, strict=True)
        return best([Attempt(fraction, image, verdict, scores) for fraction, image, (verdict, scores) in results])
