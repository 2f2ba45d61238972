"""The input images of models under test, in batches that fit one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.model_services.image_shelf import ImageShelf
from shared.chunks import chunks
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload

PIXELS_PER_REQUEST = MAX_IMAGES_PER_MESSAGE * 512**2


class ModelInput(NamedTuple):
    """An input of the models under test by its digest: a counterfactual, or the original (None)."""

    counterfactual_id: str | None
    digest: str


def requests(images: Sequence[ModelInput], pixels: int) -> Iterator[Sequence[ModelInput]]:
    """Batches of images of so many pixels each: they are in memory together, once as they are and twice as JSON."""
    return chunks(images, max(1, min(MAX_IMAGES_PER_MESSAGE, PIXELS_PER_REQUEST // max(1, pixels))))


def payloads(images: Sequence[ModelInput], shelf: ImageShelf) -> list[ImagePayload]:
    """The images of a batch. Raises ObjectMissing."""
    return [ImagePayload(png=shelf.load(shown.digest)) for shown in images]
