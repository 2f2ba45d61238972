"""The judge of the counterfactuals that the arms of `cost_of_methods` render."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cost_sources import Method, Source, Verdicts
from diffusion_service.segmentation import Segmenter
from gateway.jobs.choices import method_defaults
from gateway.methods.checks import EDITED_CHECKS, RENDERED_CHECKS, Pictures, check_images
from gateway.methods.counterfactual import Edit, MethodImage
from gateway.methods.dillema import DillemaParameters
from gateway.methods.inverted import Attempt
from gateway.methods.lance import LanceParameters, best
from research.judges.oracles.objects import in_place, judge
from research.judges.trials import TASK, Evaluator, payload
from research.measure.counterfactuals import oracle_verdict
from research.objects.pictures import render_pair
from shared.media.images import Pixels, decode
from shared.profiles.profile import Profile


class Oracles:
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
            EDITED_CHECKS if method == "lance" else RENDERED_CHECKS,
        )
        results = zip(fractions, images, checked, strict=True)
        return best([Attempt(fraction, image, verdict, scores) for fraction, image, (verdict, scores) in results])
