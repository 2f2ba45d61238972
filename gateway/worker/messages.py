"""The images that models under test are shown, in batches that one request may hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.model_services.recorded import ImageShelf
from shared.chunks import chunks
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload

PIXELS_PER_REQUEST = MAX_IMAGES_PER_MESSAGE * 512**2
TOP = 5  # classes that a row of `tables.Prediction` keeps


class ShownImage(NamedTuple):
    """An input of the models under test by its digest: a counterfactual, or the original (None)."""

    counterfactual_id: str | None
    digest: str


def requests(images: Sequence[ShownImage], pixels: int) -> Iterator[Sequence[ShownImage]]:
    """Batches of images of so many pixels each: they are in memory together, once as they are and twice as JSON."""
    return chunks(images, max(1, min(MAX_IMAGES_PER_MESSAGE, PIXELS_PER_REQUEST // max(1, pixels))))


def payloads(images: Sequence[ShownImage], shelf: ImageShelf) -> list[ImagePayload]:
    """The images of a batch. Raises ObjectMissing."""
    return [ImagePayload(png=shelf.load(shown.digest)) for shown in images]
