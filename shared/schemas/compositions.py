"""Contract of diffusion_service's compositions: a source image in, its object on other backgrounds and places out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload

MOST_BACKGROUNDS = 64  # that a job names, or takes from its images
# Where the object goes: the edge of the image that it is moved to, or its middle.
Place = Literal["left", "right", "top", "bottom", "middle"]
Scale = Annotated[float, Field(ge=0.1, le=4)]


class Composition(Contract):
    """One image to compose: the object at a scale and place, perhaps mirrored, on a background.

    `background`: None is the source's own, with the object removed; any other is cropped and scaled to the source's
    size. With `clear` its own objects are removed first: those of `background_mask` (mode L, the background's size),
    or without one, those that the profile's segmenter detects. `place`: None keeps the object where it is.
    """

    background: ImagePayload | None = None
    background_mask: ImagePayload | None = None
    clear: bool = True
    scale: Scale = 1.0
    place: Place | None = None
    mirrored: bool = False


class ComposeRequest(Contract):
    """`POST /v1/compositions`: cut the object out of a source image and paste it, without a generator.

    `mask` (mode L, the source's size) is the object where it is not 0; None: what the profile's segmenter must keep.
    """

    editor: Literal["compose"] = "compose"
    source: ImagePayload
    mask: ImagePayload | None = None
    compositions: Annotated[list[Composition], Field(min_length=1, max_length=MAX_IMAGES_PER_MESSAGE - 2)]


class ComposeReply(Contract):
    """Images at the source's size, in the order of the request; null where a composition is refused.

    `refusals` has the reason for each composition, "" for those with an image. `mask` (mode L, 255 = object) is the
    object in the source, empty if there is none.
    """

    images: list[ImagePayload | None]
    refusals: list[str]
    mask: ImagePayload
