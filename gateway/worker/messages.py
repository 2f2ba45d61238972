"""The images that models under test predict, in parts that a message to the evaluator holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, MAX_MESSAGE_BYTES, ImagePayload

TOP = 5  # classes that a row of `tables.Prediction` keeps
_MOST_PNG_BYTES = MAX_MESSAGE_BYTES * 5 // 7  # base64 makes 4 of 3, and a little is left for the rest of a message


class ShownImage(NamedTuple):
    """An image that models under test predict: a counterfactual's, or (None) the original."""

    counterfactual_id: str | None
    image: ImagePayload


def messages(images: Sequence[ShownImage]) -> Iterator[list[ShownImage]]:
    """The images in parts that fit a message, by number and by bytes (noise hardly compresses)."""
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
