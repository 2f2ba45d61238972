"""Limit the bytes of an external server's reply while they are read."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

import httpx

from shared.problems import DependencyFailed

IDENTITY = {"Accept-Encoding": "identity"}
"""Asks for a reply without compression: a small compressed reply can unpack to more than the memory holds."""


def refuse_compression(reply: httpx.Response, server: str) -> None:
    """Raises DependencyFailed for a compressed reply. Its sentence begins with `server`."""
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise DependencyFailed(f"{server} sent a compressed reply; make it honour Accept-Encoding")


async def limited(chunks: AsyncIterable[bytes], max_bytes: int, server: str) -> AsyncIterator[bytes]:
    """The chunks of a body. Raises DependencyFailed beyond `max_bytes`; its sentence begins with `server`."""
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise DependencyFailed(f"{server} sent more than {max_bytes:,} bytes")
        yield chunk


class LimitedStream(httpx.AsyncByteStream):
    """The stream of a reply that another library reads, with the limit of `limited`."""

    def __init__(self, stream: httpx.AsyncByteStream, max_bytes: int, server: str) -> None:
        self._stream = stream
        self._chunks = limited(stream, max_bytes, server)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        await self._stream.aclose()
