"""Proposals, their renderings and null arms as `MethodCounterfactual`s, the same way for every method.

Ordinals count the proposals of a source image first, rendered or not, and then its null arms. A null arm whose image is
not finite has no row; edits that would be compared with it are refused as `null arm`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.methods.checks import Scores
from gateway.methods.counterfactual import Edit, MethodCounterfactual, Verdict
from gateway.methods.questions import Exchange
from shared.schemas.base import ImagePayload

ACCEPTED = Verdict(accepted=True)
NO_NULL_ARM = Verdict(False, "null arm", "its null arm is not finite, so nothing tells the change from the generator")
Lineage = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Proposal:
    """An edit before rendering: the verdict and scores of the text checks, and the exchanges that led to it."""

    edit: Edit
    seed: int
    verdict: Verdict = ACCEPTED
    scores: Scores = field(default_factory=dict)
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True, slots=True)
class RenderedArm:
    """The image (None: not finite) of an edit or of a null arm, with what the image checks say of it.

    `pair` is equal for an edit and its null arm, and differs between null arms. `lineage` is what belongs to this image
    alone.
    """

    image: ImagePayload | None
    seed: int
    verdict: Verdict
    scores: Scores
    lineage: Lineage
    pair: Hashable = None


def accepted_edits(proposals: Sequence[Proposal]) -> list[Edit]:
    """The edits that are rendered, in order."""
    return [proposal.edit for proposal in proposals if proposal.verdict.accepted]


def rows(
    lineage: Lineage, proposals: Sequence[Proposal], arms: Sequence[RenderedArm], nulls: Sequence[RenderedArm]
) -> Iterator[MethodCounterfactual]:
    """The rows of one source image: proposals in order, then null arms.

    `arms` are the renderings of the accepted proposals, in their order; `lineage` is what all rows have in common.
    """
    finite = [null for null in nulls if null.image is not None]
    null_ordinals = {null.pair: ordinal for ordinal, null in enumerate(finite, start=len(proposals))}
    rendered = iter(arms)
    for ordinal, proposal in enumerate(proposals):
        arm = next(rendered) if proposal.verdict.accepted else None
        null_ordinal = null_ordinals.get(arm.pair) if arm else None
        if arm and arm.verdict.accepted and null_ordinal is None:
            arm = replace(arm, verdict=NO_NULL_ARM)
        yield edit_row(ordinal, proposal, arm, null_ordinal, lineage)
    for null in finite:
        yield null_row(null_ordinals[null.pair], null, lineage)


def edit_row(
    ordinal: int, proposal: Proposal, arm: RenderedArm | None, null_ordinal: int | None, lineage: Lineage
) -> MethodCounterfactual:
    """The row of an edit; without `arm` it was refused by its words and cost no evaluation."""
    exchanges = {"exchanges": list(proposal.exchanges)} if proposal.exchanges else {}
    return MethodCounterfactual(
        ordinal=ordinal,
        arm="edit",
        seed=proposal.seed,
        edit=proposal.edit,
        null_ordinal=null_ordinal,
        image=arm.image if arm else None,
        verdict=arm.verdict if arm else proposal.verdict,
        scores={**proposal.scores, **(arm.scores if arm else {})},
        lineage={**lineage, **exchanges, **(arm.lineage if arm else {"evaluations": 0})},
    )


def null_row(ordinal: int, arm: RenderedArm, lineage: Lineage) -> MethodCounterfactual:
    """The row of a null arm, which no check refuses."""
    return MethodCounterfactual(
        ordinal=ordinal,
        arm="null",
        seed=arm.seed,
        edit=None,
        null_ordinal=None,
        image=arm.image,
        verdict=ACCEPTED,
        scores=arm.scores,
        lineage={**lineage, **arm.lineage},
    )
