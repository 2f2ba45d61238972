"""Contract of caption_service: images in, captions out."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload
from shared.seeds import derive_seed

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
CaptionsPerImage = Annotated[int, Field(ge=1, le=4)]


def check_sampling(beams: int, temperature: float, top_p: float, captions_per_image: int) -> None:
    """Raise ValueError if these settings of a captioner exclude each other."""
    if beams > 1 and temperature > 0:
        raise ValueError("beam search does not sample: set the temperature to 0, or beams to 1")
    if temperature == 0 and (top_p < 1 or captions_per_image > 1):
        raise ValueError("top_p and several captions per image need sampling: set the temperature above 0")


class CaptionRequest(Contract):
    """`POST /v1/captions`. With `beams` 1 and `temperature` 0 decoding is greedy and ignores the seed.

    `top_p`: nucleus sampling, only from the most probable tokens whose probabilities at this temperature sum to it.
    `captions_per_image`: this many samples of each image, with a seed each.
    """

    images: Annotated[list[ImagePayload], Field(min_length=1, max_length=MAX_IMAGES_PER_MESSAGE)]
    prompt: Annotated[str, Field(max_length=500)] = ""
    min_tokens: Annotated[int, Field(ge=0, le=200)] = 0
    max_tokens: Annotated[int, Field(ge=1, le=256)] = 96
    beams: Annotated[int, Field(ge=1, le=8)] = 1
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    captions_per_image: CaptionsPerImage = 1
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @property
    def seeds(self) -> list[int]:
        """The seed of each caption of an image: the request's, then seeds derived from it."""
        return [self.seed, *(derive_seed("caption", self.seed, nth) for nth in range(1, self.captions_per_image))]

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        check_sampling(self.beams, self.temperature, self.top_p, self.captions_per_image)
        return self

    @model_serializer(mode="wrap")
    def _to_wire(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = plain(self)
        for name in ("top_p", "captions_per_image"):  # calls recorded before these fields existed keep their keys
            if values[name] == 1:
                del values[name]
        return values


class CaptionReply(Contract):
    """`captions_per_image` captions of each image, in the order of the request: those of the first image first."""

    captions: list[str]
