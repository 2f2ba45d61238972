"""Edit the source image itself by inversion and prompt-to-prompt: what the methods that do so share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import Field

from gateway.methods.checks import CHECKS, Scores, Thresholds, check_images
from gateway.methods.counterfactual import Edit, MethodImage, Services, Verdict
from gateway.methods.inputs import Inputs
from gateway.methods.recaption import Recaption
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.diffusion import (
    EditControl,
    EditEvaluations,
    EditReply,
    EditRequest,
    InversionKind,
    NullText,
    PromptEdit,
)

ProtectedClasses = Annotated[
    tuple[str, ...], Field(max_length=50, description="Classes that edits may not name; their shape is not held here.")
]


class InversionParameters(Contract):
    """What a job may choose about caption and inversion. Defaults are LANCE's, but for `direct` (its: `null_text`)."""

    inversion: Annotated[
        InversionKind,
        Field(description="direct: Direct (PnP) inversion; null_text: optimised null embeddings (LANCE)."),
    ] = "direct"
    null_text: Annotated[NullText, Field(description="How null_text optimises (LANCE: 10 iterations, rate 0.01).")] = (
        NullText()
    )
    control: Annotated[
        EditControl,
        Field(description="none: the UNet alone; empty: a ControlNet that sees no edges; else: those of that region."),
    ] = "none"
    control_scale: Annotated[float, Field(ge=0, le=2, description="Weight of the control.")] = 1.0
    steps: Annotated[int, Field(ge=1, le=200, description="Steps of inversion, and of sampling.")] = 50
    guidance: Annotated[float, Field(ge=1, le=30, description="Classifier-free guidance scale.")] = 7.5
    caption_prompt: Annotated[str, Field(max_length=500, description="Prefix given to the captioner.")] = ""
    caption_min_tokens: Annotated[int, Field(ge=0, le=200, description="Shortest caption.")] = 20
    caption_max_tokens: Annotated[int, Field(ge=1, le=256, description="Longest caption.")] = 100
    caption_beams: Annotated[int, Field(ge=1, le=8, description="Beams of the caption search.")] = 5


class EditingParameters(InversionParameters):
    """What a job may choose where edits are made besides, and checked."""

    cross_fraction: Annotated[
        float,
        Field(
            ge=0, le=1, description="Share of the steps in which cross-attention is the source's, where captions agree."
        ),
    ] = 0.8
    recaption: Recaption = False
    thresholds: Annotated[
        dict[str, dict[str, float]],
        Field(description="Of the image checks, by check and factor (or `default`); the profile fills them in."),
    ] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Edited:
    """The images of all edits of one source, as `checks.check_images` takes them."""

    images: list[ImagePayload | None]
    keep_mask: ImagePayload | None


def invert_and_edit(
    image: MethodImage,
    services: Services,
    parameters: InversionParameters,
    caption: str,
    edits: Sequence[PromptEdit] = (),
    self_fractions: Sequence[float] = (0.0,),
) -> EditReply:
    """The source image inverted under its caption, and every edit of it under every self-attention fraction."""
    return services.edit(edit_request(image.image, parameters, caption, edits, self_fractions))


class CheckedImage(NamedTuple):
    """An edited image (None: not finite), and what the checks say of it."""

    image: ImagePayload | None
    verdict: Verdict
    scores: Scores


def edit_and_check(
    inputs: Inputs[EditingParameters],
    caption: str,
    edits: Sequence[Edit | None],
    self_fractions: Sequence[float],
    thresholds: Thresholds,
    checks: Sequence[str] = CHECKS,
) -> tuple[list[list[CheckedImage]], EditEvaluations]:
    """Each edit (None: the null arm) under each self-attention fraction, by one request, and the evaluations."""
    p = inputs.parameters
    prompts = [edit.new_caption if edit else caption for edit in edits]
    prompt_edits = [PromptEdit(prompt=prompt, cross_fraction=p.cross_fraction) for prompt in prompts]
    reply = invert_and_edit(inputs.image, inputs.services, p, caption, prompt_edits, self_fractions)
    pictures = _Edited([image for row in reply.images for image in row], reply.keep_mask)
    arms = [edit for edit in edits for _ in self_fractions]
    checked = iter(
        check_images(inputs.services, inputs.image, inputs.task, pictures, arms, thresholds, checks, p.recaption)
    )
    return [[CheckedImage(image, *next(checked)) for image in row] for row in reply.images], reply.evaluations


def edit_request(
    source: ImagePayload,
    parameters: InversionParameters,
    caption: str,
    edits: Sequence[PromptEdit] = (),
    self_fractions: Sequence[float] = (0.0,),
) -> EditRequest:
    """The request of `invert_and_edit`: of equal inversions, the service makes one."""
    return EditRequest(
        source=source,
        caption=caption,
        edits=list(edits),
        self_fractions=list(self_fractions),
        inversion=parameters.inversion,
        null_text=parameters.null_text,
        control=parameters.control,
        control_scale=parameters.control_scale,
        steps=parameters.steps,
        guidance=parameters.guidance,
    )
