"""LANCE's source filter: an image is not edited if the scorer finds that its own caption does not fit it.

An edit of such a caption says little about the image, and inversion under it costs the most of all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from gateway.methods.counterfactual import MethodImage, Verdict
from gateway.methods.schedule import Proposal
from shared.endpoints import Services
from shared.schemas.evaluation import EmbedRequest

SourceMatch = Annotated[
    float | None,
    Field(
        ge=-1,
        le=1,
        description="Edit only source images whose cosine with their own caption reaches this; none: edit all.",
    ),
]


def refuse_unfit_source(
    services: Services, image: MethodImage, caption: str, proposals: Sequence[Proposal], least: float | None
) -> list[Proposal]:
    """The proposals; those that passed the text checks have the score `source_match`, the cosine of image and caption.

    Below `least` they are refused as `source match`. Without `least`, or without such proposals, nothing is called.
    """
    if least is None or not any(proposal.verdict.accepted for proposal in proposals):
        return list(proposals)
    reply = services.embed(EmbedRequest(images=[image.image], texts=[caption]))
    cosine = float(np.dot(reply.images[0], reply.texts[0]))
    reason = f"the caption does not fit the source image: cosine {cosine:.2f}, at least {least:.2f} is needed"
    refusal = Verdict(False, "source match", reason) if cosine < least else None
    return [
        replace(
            proposal,
            verdict=refusal or proposal.verdict,
            scores={**proposal.scores, "source_match": cosine},
        )
        if proposal.verdict.accepted
        else proposal
        for proposal in proposals
    ]
