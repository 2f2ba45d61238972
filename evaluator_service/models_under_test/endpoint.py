"""Models under test behind an external HTTP server. Only the operator can name such a server, in the profile.

    POST url   {"images": ["<base64 of a PNG>", ...]}     at most `max_batch` of them, RGB, as the user sent them
    200        {"probabilities": [[...], ...]}            classifier: a row per image, a number per class
               {"maps": ["<base64 of a PNG>", ...]}       segmenter: a grey or palette PNG of each image's size
               {"maps": [[[0, 2, ...], ...], ...]}        or rows of integers; values are indices into its classes

Requests to busy (429), starting (503) and failing (500, 502, 504) servers are retried within the caller's deadline. A
status that refuses the images (400, 413, 422 and similar) raises InvalidInput. A reply is read up to its largest valid
length, and a PNG is decoded only if its header has its image's size.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ClassVar, TypeVar

import httpx
import numpy as np
from pydantic import BaseModel, ValidationError

from shared.certificates import tls_fault, trusted
from shared.chunks import chunks
from shared.http_statuses import RETRIED, refuses_content, retry_seconds
from shared.images import Pixels, decode, png_header
from shared.problems import DeadlineExceeded, DependencyFailed, InvalidInput, Problem
from shared.profile_evaluator import ModelEndpoint
from shared.schemas.base import Kind
from shared.server_replies import IDENTITY, limited, refuse_compression

ATTEMPTS = 5
LONGEST_PAUSE = 10.0
SUM_TOLERANCE = 0.01
MOST_BYTES = 256 * 1024**2
_HEAD_BYTES = 64 * 1024
_NUMBER_BYTES = 64
_PIXEL_BYTES = 8  # "255, " and a margin
_GREY, _PALETTE = 0, 3
_REFUSAL_BYTES = 300  # the part of an error or refusal that is quoted
Answer = TypeVar("Answer")


class _Rows(BaseModel):
    probabilities: list[list[float]]


class _Maps(BaseModel):
    maps: list[str | list[list[int]]]


class _Server:
    """A server with its API key; requests are batched and retried."""

    def __init__(self, endpoint: ModelEndpoint, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Raises ValueError if the environment lacks the endpoint's key, or its `ca_file` cannot be read."""
        key = os.environ.get(endpoint.api_key_variable, "") if endpoint.api_key_variable else ""
        if endpoint.api_key_variable and not key:
            raise ValueError(f"set the environment variable {endpoint.api_key_variable} to the key of {endpoint.url}")
        self._endpoint = endpoint
        self._headers = IDENTITY | ({"Authorization": f"Bearer {key}"} if key else {})
        self._transport = transport
        self._tls = trusted(endpoint.ca_file)
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self.classes = list(endpoint.classes)

    async def _answers(
        self,
        images: Sequence[bytes],
        deadline: float,
        most: Callable[[Sequence[bytes]], int],
        parse: Callable[[bytes, Sequence[bytes]], list[Answer]],
    ) -> list[Answer]:
        """One answer per image. `most` gives the longest valid reply to a batch in bytes, `parse` parses a reply."""

        async def answers_to(batch: Sequence[bytes]) -> list[Answer]:
            try:
                body = await self._ask(batch, deadline, min(most(batch), MOST_BYTES))
            except InvalidInput:
                if len(batch) == 1:
                    raise
                half = (len(batch) + 1) // 2  # the whole batch may be too large
                return [*await answers_to(batch[:half]), *await answers_to(batch[half:])]
            return await asyncio.to_thread(parse, body, batch)

        answers = await asyncio.gather(*(answers_to(batch) for batch in chunks(images, self._endpoint.max_batch)))
        return [answer for batch in answers for answer in batch]

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(verify=self._tls, transport=self._transport, trust_env=False)

    async def _ask(self, images: Sequence[bytes], deadline: float, most: int) -> bytes:
        payload = {"images": [base64.b64encode(image).decode() for image in images]}
        async with self._slots, self._client() as client:
            for attempt in range(1, ATTEMPTS + 1):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                try:
                    async with asyncio.timeout(remaining):
                        status, body, retry_after = await self._ask_once(client, payload, min(remaining, 600.0), most)
                except (TimeoutError, httpx.TimeoutException):
                    break
                except httpx.TransportError as error:
                    if fault := tls_fault(error):
                        raise self._dependency_failed(f"cannot be reached: {fault}") from error
                    failure, retry_after = f"{type(error).__name__}: {error}", ""
                else:
                    if status == 200:
                        return body
                    reason = body.decode(errors="replace").strip()
                    failure = f"status {status}{f': {reason}' if reason else ''}"
                    if refuses_content(status):
                        raise InvalidInput(f"the model at {self._endpoint.url} refuses the image: {failure}")
                    if status not in RETRIED:
                        raise self._dependency_failed(f"refused: {failure}")
                if attempt == ATTEMPTS:
                    raise DependencyFailed(f"the model at {self._endpoint.url} failed {ATTEMPTS} times: {failure}")
                seconds = retry_seconds(retry_after)
                pause = 0.25 * 2**attempt if seconds is None else seconds
                await asyncio.sleep(max(0.0, min(pause, LONGEST_PAUSE, deadline - time.monotonic())))
        raise DeadlineExceeded(f"no answer from the model at {self._endpoint.url} before the deadline")

    async def _ask_once(
        self, client: httpx.AsyncClient, payload: dict[str, list[str]], seconds: float, max_bytes: int
    ) -> tuple[int, bytes, str]:
        """Status, body (its beginning unless it is 200) and `Retry-After` of one reply.

        Raises DependencyFailed beyond `max_bytes`.
        """
        url, body = self._endpoint.url, bytearray()
        async with client.stream("POST", url, json=payload, headers=self._headers, timeout=seconds) as reply:
            if reply.status_code == 200:
                refuse_compression(reply, f"the model at {url}")
                async for chunk in limited(reply.aiter_bytes(), max_bytes, f"the model at {url}"):
                    body += chunk
            else:
                with suppress(httpx.DecodingError):  # the status is enough
                    async for chunk in reply.aiter_bytes():
                        body += chunk
                        if len(body) >= _REFUSAL_BYTES:
                            break
                del body[_REFUSAL_BYTES:]
            return reply.status_code, bytes(body), reply.headers.get("retry-after", "")

    def _dependency_failed(self, words: str) -> DependencyFailed:
        return DependencyFailed(f"the model at {self._endpoint.url} {words}")


class EndpointClassifier(_Server):
    """A classifier behind an HTTP server."""

    kind: ClassVar[Kind] = "classification"

    async def probabilities(self, images: Sequence[bytes], deadline: float) -> list[list[float]]:
        """Images (PNG) × classes. Raises DeadlineExceeded, DependencyFailed and InvalidInput (the server's refusal)."""

        def most(part: Sequence[bytes]) -> int:
            return _HEAD_BYTES + _NUMBER_BYTES * len(part) * len(self.classes)

        return await self._answers(images, deadline, most, self._parse)

    def _parse(self, body: bytes, images: Sequence[bytes]) -> list[list[float]]:
        classes = len(self.classes)
        try:
            rows = _Rows.model_validate_json(body).probabilities
        except ValidationError as error:
            raise self._dependency_failed('did not return {"probabilities": [[...]]}') from error
        if len(rows) != len(images) or any(len(row) != classes for row in rows):
            raise self._dependency_failed(f"must return {len(images)} rows of {classes} probabilities")
        array = np.array(rows)
        summed = np.isfinite(array).all() and (array >= 0).all() and np.allclose(array.sum(1), 1, atol=SUM_TOLERANCE)
        if not summed:
            raise self._dependency_failed("returned rows that are not probabilities (each row must sum to 1)")
        return rows


class EndpointSegmenter(_Server):
    """A segmenter behind an HTTP server."""

    kind: ClassVar[Kind] = "segmentation"

    async def label_maps(self, images: Sequence[bytes], deadline: float) -> list[Pixels]:
        """Per image (PNG) the index in `classes` of every pixel, height × width. Raises as `probabilities` does."""

        def most(part: Sequence[bytes]) -> int:
            return _HEAD_BYTES + _PIXEL_BYTES * sum(height * width for height, width in map(_size, part))

        return await self._answers(images, deadline, most, self._parse)

    def _parse(self, body: bytes, images: Sequence[bytes]) -> list[Pixels]:
        try:
            maps = _Maps.model_validate_json(body).maps
        except ValidationError as error:
            raise self._dependency_failed(
                'did not return {"maps": [...]} of base64 PNGs, or of rows of integers'
            ) from error
        if len(maps) != len(images):
            raise self._dependency_failed(
                f"returned {len(maps)} maps for {len(images)} images; it must return one map per image"
            )
        return [self._map(label_map, *_size(image)) for label_map, image in zip(maps, images, strict=True)]

    def _map(self, encoded: str | list[list[int]], height: int, width: int) -> Pixels:
        try:
            pixels = self._decode(encoded, height, width) if isinstance(encoded, str) else np.array(encoded)
        except (ValueError, Problem) as error:
            raise self._dependency_failed(f"returned a map that cannot be read: {error}") from error
        if pixels.shape != (height, width) or pixels.dtype.kind not in "iu":
            raise self._dependency_failed(
                f"returned a map of shape {pixels.shape}; the image has {height} rows of {width} pixels"
            )
        if pixels.min() < 0 or pixels.max() >= len(self.classes):
            raise self._dependency_failed(
                f"returned values from {pixels.min()} to {pixels.max()}; the indices of its {len(self.classes)} "
                f"classes are 0 to {len(self.classes) - 1}"
            )
        return pixels.astype(np.uint8)

    def _decode(self, text: str, height: int, width: int) -> Pixels:
        """The pixel values of a PNG. Raises ValueError, and what `decode` raises."""
        data = base64.b64decode(text, validate=True)
        header = png_header(data)
        if header is None or (header.bits != 8 and header.colour_type == _GREY):
            raise ValueError("it must be base64 of a grey PNG of 8 bits, or of a palette PNG")
        if header.colour_type not in (_GREY, _PALETTE):
            raise ValueError("it is in colour; it must be a grey or palette PNG of class indices")
        if (header.height, header.width) != (height, width):
            raise ValueError(f"it has {header.width}×{header.height} pixels, the image {width}×{height}")
        return decode(data, "L")


def _size(image: bytes) -> tuple[int, int]:
    """Height and width from a PNG's header."""
    header = png_header(image)
    if header is None:
        raise DependencyFailed("an image that is not a PNG cannot be sent to a segmenter")
    return header.height, header.width
