"""Corruptions: classical transformations at five severities (ImageNet-C, arXiv 1903.12261). No caption, no generator.

The image gets every chosen corruption at severities 1 to 5. The severities share one seed, so they differ only in
strength. The null arm is the unchanged image, processed by the same code. No check applies, because a corruption
changes no content. The image's failure point is the severity at which the prediction of a model under test first
changes (`gateway.analysis.failure_points`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self, get_args

from pydantic import Field, model_validator

from gateway.methods.arms import RenderedArm, rows
from gateway.methods.checks import RENDERED_CHECKS
from gateway.methods.counterfactual import (
    ACCEPTED,
    Change,
    Edit,
    MethodCounterfactual,
    MethodImage,
    MethodParameters,
    TaskDescription,
)
from gateway.methods.schedule import Inputs, Proposal
from shared.schemas.diffusion import SEVERITIES, Corruption, CorruptionKind, CorruptRequest
from shared.seeds import derive_seed
from shared.service.endpoints import Services


def corruptions(
    image: MethodImage, task: TaskDescription, services: Services, parameters: CorruptionsParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The corrupted images of one source image, by corruption and rising severity, then their null arm.

    Raises what the service raises.
    """
    inputs = Inputs("corruptions", REVISION, image, task, services, parameters, seed)
    chosen = [severities(inputs, kind) for kind in parameters.corruptions]
    proposals = [propose(corruption) for way in chosen for corruption in way]
    unchanged = Corruption(kind=parameters.corruptions[0], severity=0, seed=seed)
    nulls = corrupt(inputs, [unchanged])
    arms = (arm for way in chosen for arm in corrupt(inputs, way))  # 1, lazily, since 55 images need much memory
    yield from rows(inputs.lineage(skipped_checks=list(RENDERED_CHECKS)), "", proposals, arms, nulls)


def severities(inputs: Inputs[CorruptionsParameters], kind: CorruptionKind) -> list[Corruption]:
    """A corruption at every severity, under one seed."""
    seed = derive_seed(inputs.method, inputs.revision, inputs.seed, inputs.image.id, kind)
    return [Corruption(kind=kind, severity=severity, seed=seed) for severity in SEVERITIES]


def propose(corruption: Corruption) -> Proposal:
    """The edit of a corruption: it adds the corruption's value and has no caption."""
    value = value_of(corruption.kind, corruption.severity)
    change = Change(factor="other", from_phrase="", to_phrase=value, from_value="", to_value=value)
    return Proposal(Edit((change,), "", ""), corruption.seed)


def value_of(kind: CorruptionKind, severity: int) -> str:
    """The canonical value of a corruption: "gaussian noise 3"."""
    return f"{kind.replace('_', ' ')} {severity}"


def corrupt(inputs: Inputs[CorruptionsParameters], corruptions: list[Corruption]) -> list[RenderedArm[None]]:
    """The source image under some corruptions, by one request; no network is evaluated."""
    request = CorruptRequest(source=inputs.image.image, corruptions=corruptions)
    return [
        RenderedArm(corrupted, corruption.seed, ACCEPTED, {}, pair=None, evaluations=0)
        for corruption, corrupted in zip(corruptions, inputs.services.corrupt(request).images, strict=True)
    ]


# --- The parameters.

REVISION = "1"  # raise it whenever the same replies would give other counterfactuals
ALL: tuple[CorruptionKind, ...] = get_args(CorruptionKind)


class CorruptionsParameters(MethodParameters):
    """What a job may choose about corruptions."""

    corruptions: Annotated[
        tuple[CorruptionKind, ...],
        Field(min_length=1, max_length=len(ALL), description="Ways to corrupt; each at severities 1 to 5."),
    ] = ALL

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if len(set(self.corruptions)) < len(self.corruptions):
            raise ValueError("corruptions names a corruption more than once; name each once")
        return self

    def renderings(self) -> tuple[int, int]:
        return len(self.corruptions) * len(SEVERITIES), 1

    def cells(self) -> int:
        """Half of the corrupted images: each has one cell (*to* it) where others have two."""
        return -(-len(self.corruptions) * len(SEVERITIES) // 2)
