"""Batches of images for models under test, each small enough for one message to the evaluator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, MAX_MESSAGE_BYTES, ImagePayload

TOP = 5  # classes that a row of `tables.Prediction` keeps
_MOST_PNG_BYTES = MAX_MESSAGE_BYTES * 5 // 7  # base64 turns 3 bytes into 4; the rest is for other fields


class ShownImage(NamedTuple):
    """An input of the models under test: a counterfactual, or the original (None)."""

    counterfactual_id: str | None
    image: ImagePayload


def messages(images: Sequence[ShownImage]) -> Iterator[list[ShownImage]]:
    """Batches limited by number of images and by bytes (noisy images hardly compress)."""
    message: list[ShownImage] = []
    size = 0
    for shown in images:
        more = len(shown.image.png)
        if message and (len(message) == MAX_IMAGES_PER_MESSAGE or size + more > _MOST_PNG_BYTES):
            yield message
            message, size = [], 0
        message.append(shown)
        size += more
    if message:
        yield message
