"""Models under test behind an external HTTP server. Only the operator can name such a server, in the profile.

    POST url   {"images": ["<base64 of a PNG>", ...]}     at most `max_batch` of them, RGB, as the user sent them
    200        {...}                                      the answers, as the file of its kind in `kinds/` says

Requests to busy (429), starting (503) and failing (500, 502, 504) servers are retried within the caller's deadline. A
status that refuses the images (400, 413, 422 and similar) raises InvalidInput. A reply is read up to its largest valid
length.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Sequence
from contextlib import suppress

import httpx

from evaluator_service.models_under_test.kinds import KINDS, Answer
from shared.certificates import tls_fault, trusted
from shared.chunks import chunks
from shared.problems import RETRIED, DeadlineExceeded, DependencyFailed, InvalidInput, refuses_content, retry_seconds
from shared.profiles.evaluator import ModelEndpoint
from shared.service.server_replies import IDENTITY, limited, refuse_compression

ATTEMPTS = 5
LONGEST_PAUSE = 10.0
MOST_BYTES = 256 * 1024**2
_REFUSAL_BYTES = 300  # the part of an error or refusal that is quoted


class EndpointModel:
    """A server with its API key; requests are batched and retried."""

    def __init__(self, endpoint: ModelEndpoint, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Raises ValueError for too few classes, and if its key is missing or its `ca_file` cannot be read."""
        if len(endpoint.classes) < (least := KINDS[endpoint.kind].least_classes):
            raise ValueError(
                f"a {KINDS[endpoint.kind].noun} has at least {least} classes; name those of {endpoint.url}"
            )
        key = os.environ.get(endpoint.api_key_variable, "") if endpoint.api_key_variable else ""
        if endpoint.api_key_variable and not key:
            raise ValueError(f"set the environment variable {endpoint.api_key_variable} to the key of {endpoint.url}")
        self._endpoint = endpoint
        self._headers = IDENTITY | ({"Authorization": f"Bearer {key}"} if key else {})
        self._transport = transport
        self._tls = trusted(endpoint.ca_file)
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self.kind, self.classes = endpoint.kind, list(endpoint.classes)

    async def outputs(self, images: Sequence[bytes], deadline: float) -> list[Answer]:
        """One answer per image (PNG). Raises DeadlineExceeded, DependencyFailed and InvalidInput (its refusal)."""
        answers = await asyncio.gather(
            *(self._outputs(batch, deadline) for batch in chunks(images, self._endpoint.max_batch))
        )
        return [answer for batch in answers for answer in batch]

    async def _outputs(self, batch: Sequence[bytes], deadline: float) -> list[Answer]:
        kind = KINDS[self.kind]
        try:
            body = await self._ask(batch, deadline, min(kind.most_bytes(batch, len(self.classes)), MOST_BYTES))
        except InvalidInput:
            if len(batch) == 1:
                raise
            half = (len(batch) + 1) // 2  # the whole batch may be too large
            return [*await self._outputs(batch[:half], deadline), *await self._outputs(batch[half:], deadline)]
        try:
            return await asyncio.to_thread(kind.parse, body, batch, self.classes)
        except ValueError as error:
            raise self._dependency_failed(str(error)) from error

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
