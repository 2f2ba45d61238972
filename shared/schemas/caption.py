"""Contract of caption_service: images in, captions out."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload


class CaptionRequest(Contract):
    """`POST /v1/captions`. With `beams` 1 and `temperature` 0 decoding is greedy and ignores the seed."""

    images: Annotated[list[ImagePayload], Field(min_length=1, max_length=MAX_IMAGES_PER_MESSAGE)]
    prompt: Annotated[str, Field(max_length=500)] = ""
    min_tokens: Annotated[int, Field(ge=0, le=200)] = 0
    max_tokens: Annotated[int, Field(ge=1, le=256)] = 96
    beams: Annotated[int, Field(ge=1, le=8)] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class CaptionReply(Contract):
    """One caption per image, in the order of the request."""

    captions: list[str]
