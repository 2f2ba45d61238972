"""Contract of diffusion_service's corruptions: a source image in, the same image with classical corruptions out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload

CorruptionKind = Literal[
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "motion_blur",
    "zoom_blur",
    "fog",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg",
]
SEVERITIES = (1, 2, 3, 4, 5)


class Corruption(Contract):
    """One corruption of the source. Severity 0 changes nothing: the null arm. `seed` determines all randomness."""

    kind: CorruptionKind
    severity: Annotated[int, Field(ge=0, le=SEVERITIES[-1])]
    seed: Annotated[int, Field(ge=0, lt=2**63)]


class CorruptRequest(Contract):
    """`POST /v1/corruptions`: classical corruptions of a source image, without any network."""

    editor: Literal["corruptions"] = "corruptions"
    source: ImagePayload
    corruptions: Annotated[list[Corruption], Field(min_length=1, max_length=MAX_IMAGES_PER_MESSAGE - 1)]


class CorruptReply(Contract):
    """Images at the source's size, in the order of the request."""

    images: list[ImagePayload]
