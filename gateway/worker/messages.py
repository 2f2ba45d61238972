"""The input images of models under test, in batches that fit one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shared.chunks import chunks
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload

TOP = 5  # classes that a row of `tables.Prediction` keeps


class ModelInput(NamedTuple):
    """An input of the models under test: a counterfactual, or the original (None)."""

    counterfactual_id: str | None
    image: ImagePayload


def requests(images: Sequence[ModelInput]) -> Iterator[Sequence[ModelInput]]:
    """Batches by number of images. The client splits a batch of too many bytes (`model_services.parts`)."""
    return chunks(images, MAX_IMAGES_PER_MESSAGE)
