"""Splits requests whose images exceed one message, and joins the replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shared.endpoints import Endpoint, Reply, Request
from shared.schemas.base import MAX_MESSAGE_BYTES, Contract, ImagePayload

_PER_IMAGE_BYTES = len('{"png":""},')  # the JSON around the base64 of an image; the last one has no comma


def parts(endpoint: Endpoint[Request, Reply], request: Request, most: int = MAX_MESSAGE_BYTES) -> Iterator[bytes]:
    """The request as JSON messages of up to `most` bytes, in the order of its images; one message if it fits.

    A request that cannot be split stays whole, and the service refuses it. So does an image that is too large together
    with the request's other fields.
    """
    images: Sequence[ImagePayload] = getattr(request, "images", ()) if endpoint.per_image else ()
    if len(images) < 2:
        yield request.model_dump_json().encode()
        return
    room = most - len(_part(request, []))
    start = used = 0
    for index, image in enumerate(images):
        size = 4 * -(-len(image.png) // 3) + _PER_IMAGE_BYTES
        if index > start and used + size - 1 > room:
            yield _part(request, images[start:index])
            start, used = index, 0
        used += size
    yield _part(request, images[start:])


def join(endpoint: Endpoint[Request, Reply], replies: Sequence[Reply]) -> Reply:
    """The reply to the whole request, joined from the replies to its parts."""
    if len(replies) == 1:
        return replies[0]
    entries = [entry for reply in replies for entry in getattr(reply, endpoint.per_image)]
    return replies[0].model_copy(update={endpoint.per_image: entries})


def image_bytes(message: object) -> int:
    """The bytes of the images in a message, as PNG."""
    match message:
        case ImagePayload():
            return len(message.png)
        case Contract():
            return sum(image_bytes(value) for value in vars(message).values())
        case list() | tuple():
            return sum(image_bytes(value) for value in message)
        case _:
            return 0


def _part(request: Request, images: Sequence[ImagePayload]) -> bytes:
    return request.model_copy(update={"images": list(images)}).model_dump_json().encode()
