"""diffusion_service: a source image and what to render from it in, rendered images out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload

ControlKind = Literal["canny"]
# full: every edge of the source (the paper). structure: without the small loose edges of rain, snow, stars and
# texture. object: only the edges of what must stay (the segmented object). DESIGN 7, `control_region`.
ControlRegion = Literal["full", "structure", "object"]


class Rendering(Contract):
    """One image to render: a prompt under the source's control with its own seed."""

    prompt: Annotated[str, Field(min_length=1, max_length=2_000)]
    region: ControlRegion = "full"
    seed: Annotated[int, Field(ge=0, lt=2**63)]


class RenderRequest(Contract):
    """`POST /v1/renderings`. All renderings of one source share the source's control, computed once."""

    editor: Literal["controlnet"] = "controlnet"
    source: ImagePayload
    renderings: Annotated[list[Rendering], Field(min_length=1, max_length=MAX_IMAGES_PER_MESSAGE - 1)]
    control: ControlKind = "canny"
    control_scale: Annotated[float, Field(ge=0, le=2)] = 1.0
    negative_prompt: Annotated[str, Field(max_length=1_000)] = ""
    steps: Annotated[int, Field(ge=1, le=200)] = 20
    guidance: Annotated[float, Field(ge=1, le=30)] = 7.5


class RenderReply(Contract):
    """Images at the source's size, in the order of the request.

    `controls` holds the control image used for each region that occurs; `keep_mask` (mode L, 255 = keep) is the
    segmented object; `evaluations` counts network evaluations (one latent through one UNet forward) per image.
    """

    images: list[ImagePayload]
    controls: dict[ControlRegion, ImagePayload]
    keep_mask: ImagePayload | None
    evaluations: int
    prompts: list[str] = Field(default_factory=list)
