"""Rendered edits, the null and sham arms that they are compared with, and their rows; shared by all methods.

Each proposal, null arm and sham arm becomes a row, a `MethodCounterfactual`. Ordinals number the proposals of a source
image first, rendered or not, then its null arms, then its sham arms. An arm whose image is not finite has no row. Edits
without a null arm are refused as `null arm`; pairs without a sham arm do not count.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, NamedTuple, TypeVar

from gateway.methods.checks import RENDERED_CHECKS, judge_arm
from gateway.methods.counterfactual import Edit, Lineage, MethodCounterfactual, Scores, Thresholds, Verdict
from gateway.methods.schedule import Proposal
from shared.schemas.base import ImagePayload

Pair = TypeVar("Pair", bound=Hashable)

_NO_NULL_ARM = Verdict(False, "null arm", "its null arm is not finite, so there is nothing to compare the image with")


@dataclass(frozen=True, slots=True)
class RenderedArm(Generic[Pair]):
    """The image (None: not finite) of an edit or of a null arm, with verdict and scores of the image checks.

    `pair` is equal for an edit and its null arm, and differs between null arms. `evaluations` is the cost of the image
    in network evaluations, `lineage` the part that belongs to this image alone. `null_check` and `sham_check` of an
    edit name the check that its null or sham arm fails ("" if none); None without such an arm.
    """

    image: ImagePayload | None
    seed: int
    verdict: Verdict
    scores: Scores
    pair: Pair
    evaluations: int
    control: ImagePayload | None = None
    lineage: Lineage = field(default_factory=Lineage)
    null_check: str | None = None
    sham_check: str | None = None


@dataclass(frozen=True, slots=True)
class ShamArms(Generic[Pair]):
    """The renderings of a paraphrase: words change, the meaning does not."""

    edit: Edit
    arms: Sequence[RenderedArm[Pair]]


class ComparedArms(NamedTuple, Generic[Pair]):
    """The renderings of edits, each judged together with its null and sham arm, and these arms."""

    edits: Sequence[RenderedArm[Pair]]
    nulls: Sequence[RenderedArm[Pair]]
    shams: ShamArms[Pair] | None = None


def compare_arms(
    edits: Sequence[Edit],
    arms: Sequence[RenderedArm[Pair]],
    nulls: Sequence[RenderedArm[Pair]],
    shams: ShamArms[Pair] | None,
    thresholds: Thresholds,
    checks: Sequence[str] = RENDERED_CHECKS,
) -> ComparedArms[Pair]:
    """The arms of edits with the check that the null arm and the sham arm of each fail.

    `thresholds`: those of null and sham arms; the limit is that of the edit's factor.
    """
    null_checks = _failed_checks(edits, arms, nulls, thresholds, checks)
    judged = [replace(arm, null_check=check) for arm, check in zip(arms, null_checks, strict=True)]
    if shams:
        sham_checks = _failed_checks(edits, arms, shams.arms, thresholds, checks)
        judged = [replace(arm, sham_check=check) for arm, check in zip(judged, sham_checks, strict=True)]
    return ComparedArms(judged, nulls, shams)


def _failed_checks(
    edits: Sequence[Edit],
    arms: Sequence[RenderedArm[Pair]],
    compared: Sequence[RenderedArm[Pair]],
    thresholds: Thresholds,
    checks: Sequence[str],
) -> list[str]:
    by_pair = {arm.pair: arm for arm in compared}
    partners = [by_pair[arm.pair] for arm in arms]
    return [
        partner.verdict.check or judge_arm(partner.scores, edit, thresholds, checks).check
        for edit, partner in zip(edits, partners, strict=True)
    ]


def rows(
    lineage: Lineage,
    caption: str,
    proposals: Sequence[Proposal],
    arms: Iterable[RenderedArm[Pair]],
    nulls: Sequence[RenderedArm[Pair]] | None,
    shams: ShamArms[Pair] | None = None,
) -> Iterator[MethodCounterfactual]:
    """The rows of one source image: proposals in order, null arms (None: the source image is the null arm), sham arms.

    `arms` are the renderings of the accepted proposals, in their order; `lineage` is the part that all rows share.
    """
    null_ordinals = _ordinals(nulls or (), len(proposals))
    sham_ordinals = _ordinals(shams.arms if shams else (), len(proposals) + len(null_ordinals))
    rendered = iter(arms)
    for ordinal, proposal in enumerate(proposals):
        arm = next(rendered) if proposal.verdict.accepted else None
        if arm and arm.verdict.accepted and nulls is not None and arm.pair not in null_ordinals:
            arm = replace(arm, verdict=_NO_NULL_ARM)
        row = _edit_row(ordinal, proposal, arm, caption, lineage)
        if arm:
            row = replace(row, null_ordinal=null_ordinals.get(arm.pair), sham_ordinal=sham_ordinals.get(arm.pair))
        yield row
    for null in nulls or ():
        if null.pair in null_ordinals:
            yield _arm_row("null", null_ordinals[null.pair], null, None, caption, lineage)
    for sham in shams.arms if shams else ():
        if shams and sham.pair in sham_ordinals:
            yield _arm_row("sham", sham_ordinals[sham.pair], sham, shams.edit, caption, lineage)


def _ordinals(arms: Sequence[RenderedArm[Pair]], start: int) -> dict[Pair, int]:
    """The ordinals of the arms with a finite image, by pair."""
    finite = [arm for arm in arms if arm.image is not None]
    return {arm.pair: ordinal for ordinal, arm in enumerate(finite, start=start)}


def _edit_row(
    ordinal: int, proposal: Proposal, arm: RenderedArm[Pair] | None, caption: str, lineage: Lineage
) -> MethodCounterfactual:
    """The row of an edit. Without `arm` a text check refused it, and it cost no evaluation."""
    proposed: Lineage = {"exchanges": list(proposal.exchanges)} if proposal.exchanges else {}
    if proposal.edit.instruction:
        proposed["instruction"] = proposal.edit.instruction
    arm_lineage: Lineage = arm.lineage if arm else {}
    return MethodCounterfactual(
        ordinal=ordinal,
        arm="edit",
        seed=proposal.seed,
        edit=proposal.edit,
        null_ordinal=None,
        image=arm.image if arm else None,
        verdict=arm.verdict if arm else proposal.verdict,
        scores={**proposal.scores, **(arm.scores if arm else {})},
        caption=caption,
        control=arm.control if arm else None,
        evaluations=arm.evaluations if arm else 0,
        lineage={**lineage, **proposed, **arm_lineage},
        null_check=arm.null_check if arm else None,
        sham_check=arm.sham_check if arm else None,
    )


def _arm_row(
    kind: Literal["null", "sham"],
    ordinal: int,
    arm: RenderedArm[Pair],
    edit: Edit | None,
    caption: str,
    lineage: Lineage,
) -> MethodCounterfactual:
    """The row of a null or sham arm. Its verdict does not depend on the thresholds of an edit."""
    return MethodCounterfactual(
        ordinal=ordinal,
        arm=kind,
        seed=arm.seed,
        edit=edit,
        null_ordinal=None,
        image=arm.image,
        verdict=arm.verdict,
        scores=arm.scores,
        caption=caption,
        control=arm.control,
        evaluations=arm.evaluations,
        lineage={**lineage, **arm.lineage},
    )


def renumber(row: MethodCounterfactual, first: int) -> MethodCounterfactual:
    """The row with ordinals that follow `first` others of its source image."""
    null, sham = row.null_ordinal, row.sham_ordinal
    return replace(
        row,
        ordinal=row.ordinal + first,
        null_ordinal=None if null is None else null + first,
        sham_ordinal=None if sham is None else sham + first,
    )
