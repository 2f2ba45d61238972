"""Corruptions: classical transformations at five severities (ImageNet-C, arXiv 1903.12261). No caption, no generator.

1 the image is corrupted in every chosen way at severities 1 to 5. 2 what each model under test says of them; the
severity at which its answer first changes is the image's failure point (`gateway.analysis.failure_points`). A way's
severities share one seed, so they differ in strength alone. The null arm is the unchanged image through the same code.
No check applies: a corruption changes no content, by definition, and scores made for edits say nothing of noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self, get_args

from pydantic import Field, model_validator

from gateway.methods.checks import CHECKS
from gateway.methods.counterfactual import Change, Edit, MethodCounterfactual, MethodImage, TaskDescription
from gateway.methods.schedule import ACCEPTED, Proposal, RenderedArm, edit_row, null_row
from shared.endpoints import Services
from shared.schemas.base import Contract
from shared.schemas.diffusion import SEVERITIES, Corruption, CorruptionKind, CorruptRequest
from shared.seeds import derive_seed

REVISION = "1"  # raise it whenever the same replies would give other counterfactuals
ALL: tuple[CorruptionKind, ...] = get_args(CorruptionKind)


class CorruptionsParameters(Contract):
    """What a job may choose about corruptions."""

    corruptions: Annotated[
        tuple[CorruptionKind, ...],
        Field(min_length=1, max_length=len(ALL), description="Ways to corrupt; each at severities 1 to 5."),
    ] = ALL

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if len(set(self.corruptions)) < len(self.corruptions):
            raise ValueError("leave each of the corruptions in once")
        return self


def corruptions(
    image: MethodImage, task: TaskDescription, services: Services, parameters: CorruptionsParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The corrupted images of one source image, way by way and by rising severity, then their null arm.

    A failure of the service is raised.
    """
    lineage = {
        "method": "corruptions",
        "revision": REVISION,
        "parameters": parameters.model_dump(mode="json"),
        "skipped_checks": list(CHECKS),
    }
    null_ordinal = len(parameters.corruptions) * len(SEVERITIES)
    for place, kind in enumerate(parameters.corruptions):
        kind_seed = derive_seed("corruptions", REVISION, seed, image.id, kind)
        arms = corrupt(services, image, [Corruption(kind=kind, severity=s, seed=kind_seed) for s in SEVERITIES])
        for severity, arm in zip(SEVERITIES, arms, strict=True):
            proposal = Proposal(Edit((_change(kind, severity),), "", ""), kind_seed)
            yield edit_row(place * len(SEVERITIES) + severity - 1, proposal, arm, null_ordinal, lineage)
    unchanged = Corruption(kind=parameters.corruptions[0], severity=0, seed=seed)
    [null] = corrupt(services, image, [unchanged])
    yield null_row(null_ordinal, null, lineage)


def corrupt(services: Services, image: MethodImage, corruptions: list[Corruption]) -> list[RenderedArm]:
    """Step 1: the source image under some corruptions, by one request; no network is evaluated for it."""
    images = services.corrupt(CorruptRequest(source=image.image, corruptions=corruptions)).images
    return [
        RenderedArm(corrupted, corruption.seed, ACCEPTED, {}, {"evaluations": 0})
        for corruption, corrupted in zip(corruptions, images, strict=True)
    ]


def value_of(kind: CorruptionKind, severity: int) -> str:
    """The canonical value of a corruption: "gaussian noise 3"."""
    return f"{kind.replace('_', ' ')} {severity}"


def _change(kind: CorruptionKind, severity: int) -> Change:
    value = value_of(kind, severity)
    return Change(factor="other", from_phrase="", to_phrase=value, from_value="", to_value=value)
