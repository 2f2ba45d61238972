"""Steps 4 and 5 of LANCE (arXiv 2305.19164, sections 3.2 and 3.3), which LANCE-R, its control, shares.

4 `sweep_fractions` inverts the image and edits it by prompt-to-prompt under every self-attention fraction. A large one
keeps the source's layout, a small one leaves room for the edit, and which is right differs from edit to edit. 5 `best`
keeps the image with the greatest φ of those that pass all checks but that of φ itself, on ties that of the larger
fraction. All edits and fractions share requests, in which source branch and inversion are computed once. Scores and
verdict of every fraction are kept. The paper's symbols:

f   `fraction`: share of the steps in which self-attention is the source's
φ   score `direction`: cosine of the image's and the caption's change in the scorer's space (`checks.py`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from gateway.methods.arms import RenderedArm
from gateway.methods.checks import EDIT_CHECKS, Scores
from gateway.methods.counterfactual import Edit, Verdict
from gateway.methods.inputs import Inputs
from gateway.methods.inverted import EditingParameters, edit_and_check
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload
from shared.schemas.diffusion import Fraction

_MOST_IMAGES = MAX_IMAGES_PER_MESSAGE - 1  # of edits; the reconstruction travels, too


class SweepParameters(EditingParameters):
    """What a job may choose about editing. Defaults are LANCE's, but for `direct` inversion."""

    self_fractions: Annotated[
        tuple[Fraction, ...],
        Field(
            min_length=1,
            max_length=_MOST_IMAGES,
            description="Shares of the steps in which self-attention is the source's: each is tried, the best is kept.",
        ),
    ] = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Attempt:
    """An image made with one fraction (None: not finite), and what the checks say of it."""

    fraction: float
    image: ImagePayload | None
    verdict: Verdict
    scores: Scores


@dataclass(frozen=True, slots=True)
class Sweep:
    """The attempts at one edit by rising fraction, and the evaluations that they cost.

    `evaluations` has a share of what the edits of a request have in common: inversion and source branch.
    """

    attempts: tuple[Attempt, ...]
    evaluations: int


def sweep_fractions(
    inputs: Inputs[SweepParameters], caption: str, edits: Sequence[Edit], checks: Sequence[str] = EDIT_CHECKS
) -> list[Sweep]:
    """The edits of one source image under every fraction, checked; as many edits in a request as fit."""
    fractions = sorted(set(inputs.parameters.self_fractions))
    size = max(1, _MOST_IMAGES // len(fractions))
    batches = [edits[start : start + size] for start in range(0, len(edits), size)]
    return [sweep for batch in batches for sweep in _edit(inputs, caption, batch, fractions, checks)]


def keep_best(inputs: Inputs[SweepParameters], sweep: Sweep) -> RenderedArm:
    """The best attempt at an edit, with all of them in the lineage."""
    return _arm(best(sweep.attempts), sweep, inputs.seed)


def render_null_arms(inputs: Inputs[SweepParameters], caption: str, arms: Sequence[RenderedArm]) -> list[RenderedArm]:
    """A null arm (caption unchanged) for each fraction that was chosen, by rising fraction."""
    fractions = sorted({arm.lineage["self_fraction"] for arm in arms})
    if not fractions:
        return []
    [nulls] = _edit(inputs, caption, [None], fractions, EDIT_CHECKS)
    evaluations = round(nulls.evaluations / len(fractions))
    return [_arm(attempt, Sweep((attempt,), evaluations), inputs.seed) for attempt in nulls.attempts]


def best(attempts: Sequence[Attempt]) -> Attempt:
    """Among those that no check refuses, the direction's left aside, the greatest φ; ties go to the larger fraction.

    Where every attempt is refused by another check it is the greatest φ of all.
    """
    fit = [a for a in attempts if a.verdict.accepted or a.verdict.check == "direction"]
    return max(fit or attempts, key=lambda a: (a.scores.get("direction", -1.0), a.fraction))


def _edit(
    inputs: Inputs[SweepParameters],
    caption: str,
    edits: Sequence[Edit | None],
    fractions: Sequence[float],
    checks: Sequence[str],
) -> list[Sweep]:
    nearer = {"caption": {"default": 0.0}, "word": {"default": 0.0}}  # to the new one than to the old
    thresholds = nearer | inputs.parameters.thresholds
    images, evaluations = edit_and_check(inputs, caption, edits, fractions, thresholds, checks)
    common = round((evaluations.inversion + evaluations.source) / len(edits))
    cost = common + evaluations.edit * len(fractions)
    return [
        Sweep(tuple(Attempt(fraction, *image) for fraction, image in zip(fractions, row, strict=True)), cost)
        for row in images
    ]


def _arm(chosen: Attempt, sweep: Sweep, seed: int) -> RenderedArm:
    tried = [
        {"self_fraction": a.fraction, "check": a.verdict.check, "reason": a.verdict.reason, "scores": a.scores}
        for a in sweep.attempts
    ]
    lineage = {"self_fraction": chosen.fraction, "sweep": tried, "evaluations": sweep.evaluations}
    return RenderedArm(chosen.image, seed, chosen.verdict, chosen.scores, lineage, pair=chosen.fraction)
