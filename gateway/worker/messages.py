"""The images that models under test are shown, in batches that one request may hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shared.chunks import chunks
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload

TOP = 5  # classes that a row of `tables.Prediction` keeps


class ShownImage(NamedTuple):
    """An input of the models under test: a counterfactual, or the original (None)."""

    counterfactual_id: str | None
    image: ImagePayload


def requests(images: Sequence[ShownImage]) -> Iterator[Sequence[ShownImage]]:
    """Batches by number of images. The client sends one of too many bytes in parts (`model_services.parts`)."""
    return chunks(images, MAX_IMAGES_PER_MESSAGE)
