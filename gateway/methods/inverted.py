"""What methods share that edit the source image itself (inversion, then prompt-to-prompt) rather than draw it anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from gateway.methods.counterfactual import Services, SourceImage
from gateway.methods.recaption import Recaption
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.caption import CaptionRequest
from shared.schemas.diffusion import EditControl, EditReply, EditRequest, InversionKind, NullText, PromptEdit

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
class Pictures:
    """Images of one source with the mask of what must stay, as `checks.check_images` takes them."""

    images: list[ImagePayload]
    keep_mask: ImagePayload | None


def caption_of(image: SourceImage, services: Services, parameters: InversionParameters) -> str:
    """The caption under which the source image is inverted."""
    request = CaptionRequest(
        images=[image.image],
        prompt=parameters.caption_prompt,
        min_tokens=parameters.caption_min_tokens,
        max_tokens=parameters.caption_max_tokens,
        beams=parameters.caption_beams,
    )
    return " ".join(services.caption(request).captions[0].split())


def edited(
    image: SourceImage,
    services: Services,
    parameters: InversionParameters,
    caption: str,
    edits: Sequence[PromptEdit] = (),
    self_fractions: Sequence[float] = (0.0,),
) -> EditReply:
    """The source image inverted under its caption, and every edit of it under every self-attention fraction."""
    return services.edit(edit_request(image.image, parameters, caption, edits, self_fractions))


def edit_request(
    source: ImagePayload,
    parameters: InversionParameters,
    caption: str,
    edits: Sequence[PromptEdit] = (),
    self_fractions: Sequence[float] = (0.0,),
) -> EditRequest:
    """What `edited` asks for: of equal inversions, the service makes one."""
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
