"""The size of a request's body: declared, and counted while it comes in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive

from shared.problems import Malformed, TooLarge

LUMP_BYTES = 8 * 1024**2  # bodies of unknown length are counted in steps of this size


def declared_length(length: str | None, most: int) -> int | None:
    """The Content-Length of a request, None without one. Raises Malformed, and TooLarge beyond `most` bytes."""
    if length is None:
        return None
    if not (length.isascii() and length.isdigit()):
        raise Malformed(f"Content-Length is {length!r}; it must be a number of bytes")
    if int(length) > most:
        raise _too_large(most)
    return int(length)


def count_bytes(
    receive: Receive, most: int, paid: int, pay: Callable[[int], Awaitable[None]], spooled: Callable[[int], None]
) -> Receive:
    """Count the body. `paid` bytes are charged to the key already; further ones are charged per `LUMP_BYTES`."""
    received = 0

    async def counting() -> Message:
        nonlocal received, paid
        message = await receive()
        size = len(message.get("body", b""))
        received += size
        if received > most:
            raise _too_large(most)
        spooled(size)
        while received > paid:
            await pay(min(LUMP_BYTES, most))
            paid += LUMP_BYTES
        return message

    return counting


def _too_large(most: int) -> TooLarge:
    return TooLarge(
        f"the body is larger than {most:,} bytes; send less, or images one by one with PUT /images/{{digest}}"
    )
