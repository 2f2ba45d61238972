"""The sweep over the self-attention fraction: every edit of an image under every f, its checks, and the best of them.

LANCE renders so (arXiv 2305.19164, sections 3.2 and 3.3), and LANCE-R, its control. A large f keeps the source's
layout, a small one leaves room for the edit, and which is right differs from edit to edit. All edits and fractions
share requests, in which source branch and inversion are computed once. Of the images that pass all checks but the
direction's, the one with the greatest φ is taken, on ties that of the larger f. Scores and verdict of every f are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from gateway.methods.checks import EDIT_CHECKS, Scores, check_images
from gateway.methods.counterfactual import Edit, Services, SourceImage, TaskDescription, Verdict
from gateway.methods.inverted import EditingParameters, Pictures, edited
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload
from shared.schemas.diffusion import Fraction, PromptEdit

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
    """An image made with one fraction, and what the checks say of it."""

    fraction: float
    image: ImagePayload
    verdict: Verdict
    scores: Scores


@dataclass(frozen=True, slots=True)
class Swept:
    """What came of one edit, or (edit None) of the null arm with the fraction of `chosen`.

    `attempts` are all, by rising fraction; `evaluations` what they cost, with a share of inversion and source branch.
    """

    edit: Edit | None
    chosen: Attempt
    attempts: tuple[Attempt, ...]
    evaluations: int

    def lineage(self) -> dict[str, Any]:
        """The sweep as the lineage keeps it."""
        tried = [
            {"self_fraction": a.fraction, "check": a.verdict.check, "reason": a.verdict.reason, "scores": a.scores}
            for a in self.attempts
        ]
        return {"self_fraction": self.chosen.fraction, "sweep": tried, "evaluations": self.evaluations}


def swept(
    image: SourceImage,
    task: TaskDescription,
    services: Services,
    parameters: SweepParameters,
    caption: str,
    edits: Sequence[Edit],
    checks: Sequence[str] = EDIT_CHECKS,
) -> tuple[list[Swept], list[Swept]]:
    """The edits of one source image rendered, checked and chosen, in order; and their null arms by rising fraction.

    There is one null arm (caption unchanged) for each fraction that was chosen.
    """
    fractions = sorted(set(parameters.self_fractions))
    size = max(1, _MOST_IMAGES // len(fractions))
    sweep = _Sweep(image, task, services, parameters, caption, tuple(checks))
    made = [one for start in range(0, len(edits), size) for one in sweep.of(edits[start : start + size], fractions)]
    nulls = sweep.of([None], sorted({one.chosen.fraction for one in made})) if made else []
    arms = [
        replace(one, chosen=attempt, attempts=(attempt,), evaluations=round(one.evaluations / len(one.attempts)))
        for one in nulls
        for attempt in one.attempts
    ]
    return made, arms


def best(attempts: Sequence[Attempt]) -> Attempt:
    """Among those that no check refuses, the direction's left aside, the greatest φ; ties go to the larger fraction.

    Where every attempt is refused by another check it is the greatest φ of all.
    """
    fit = [a for a in attempts if a.verdict.accepted or a.verdict.check == "direction"]
    return max(fit or attempts, key=lambda a: (a.scores.get("direction", -1.0), a.fraction))


@dataclass(frozen=True, slots=True)
class _Sweep:
    """A source image, its caption, and whom to ask with which parameters and checks."""

    image: SourceImage
    task: TaskDescription
    services: Services
    parameters: SweepParameters
    caption: str
    checks: tuple[str, ...]

    def of(self, edits: Sequence[Edit | None], fractions: Sequence[float]) -> list[Swept]:
        """Each edit (None: the null arm) under each of the fractions, by one request."""
        p = self.parameters
        asked = [
            PromptEdit(prompt=edit.new_caption if edit else self.caption, cross_fraction=p.cross_fraction)
            for edit in edits
        ]
        reply = edited(self.image, self.services, p, self.caption, asked, fractions)
        images = [picture for row in reply.images for picture in row]
        arms = [edit for edit in edits for _ in fractions]
        pictures = Pictures(images, reply.keep_mask)
        nearer = {"caption": {"default": 0.0}, "word": {"default": 0.0}}  # to the new one than to the old
        limits = nearer | p.thresholds
        checked = check_images(self.services, self.image, self.task, pictures, arms, limits, self.checks, p.recaption)
        attempts = [
            Attempt(fraction, picture, verdict, scores)
            for fraction, picture, (verdict, scores) in zip([*fractions] * len(edits), images, checked, strict=True)
        ]
        once = round((reply.evaluations.inversion + reply.evaluations.source) / len(edits))
        cost = once + reply.evaluations.edit * len(fractions)
        rows = [tuple(attempts[start : start + len(fractions)]) for start in range(0, len(attempts), len(fractions))]
        return [Swept(edit, best(row), row, cost) for edit, row in zip(edits, rows, strict=True)]
