"""Models under test behind an external HTTP server. Only the operator can name such a server, in the profile.

    POST url   {"images": ["<base64 of a PNG>", ...]}     at most `max_batch` of them, RGB, as the user sent them
    200        {...}                                      the answers, as the file of its kind in `kinds/` says

This is our own protocol. Hugging Face's servers get one image as `inputs`; `kserve` is the Open Inference Protocol.
Requests to busy (429), starting (503) and failing (500, 502, 504) servers are retried within the caller's deadline. A
status that refuses the images (400, 413, 422 and similar) raises InvalidInput. A reply is read up to its largest valid
length.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress

import httpx

from evaluator_service.models_under_test import kserve
from evaluator_service.models_under_test.kinds import KINDS, Answer
from evaluator_service.models_under_test.preprocessing import from_description
from shared.certificates import tls_fault, trusted
from shared.characters import storable
from shared.chunks import chunks
from shared.media.images import Pixels, decode
from shared.problems import RETRIED, DeadlineExceeded, DependencyFailed, InvalidInput, refuses_content, retry_seconds
from shared.profiles.evaluator import ModelEndpoint
from shared.schemas.models import ModelDescription
from shared.service.server_replies import IDENTITY, beginning, limited, refuse_compression

ATTEMPTS = 5
LONGEST_PAUSE = 10.0
MOST_BYTES = 256 * 1024**2
_ALL_SCORES = {"parameters": {"threshold": 0.0}}
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
        self._most = 1 if endpoint.protocol == "huggingface" else endpoint.max_batch
        self._description = ModelDescription(
            kind=endpoint.kind,
            classes=endpoint.classes,
            output=endpoint.output,
            preprocessing=endpoint.preprocessing,
        )
        self.kind, self.classes = endpoint.kind, list(endpoint.classes)

    async def outputs(self, images: Sequence[bytes], deadline: float) -> list[Answer]:
        """One answer per image (PNG). Raises DeadlineExceeded, DependencyFailed and InvalidInput (its refusal)."""
        answers = await asyncio.gather(*(self._outputs(batch, deadline) for batch in chunks(images, self._most)))
        return [answer for batch in answers for answer in batch]

    async def _outputs(self, batch: Sequence[bytes], deadline: float) -> list[Answer]:
        content, headers, pixels = await asyncio.to_thread(self._request, batch)
        most = MOST_BYTES if pixels else min(KINDS[self.kind].most_bytes(batch, len(self.classes)), MOST_BYTES)
        try:
            body, head_length = await self._ask(content, headers, deadline, most)
        except InvalidInput:
            if len(batch) == 1:
                raise
            half = (len(batch) + 1) // 2  # the whole batch may be too large
            return [*await self._outputs(batch[:half], deadline), *await self._outputs(batch[half:], deadline)]
        try:
            return await asyncio.to_thread(self._read, body, head_length, batch, pixels)
        except ValueError as error:
            raise self._dependency_failed(f"{error}{_beginning(body)}") from error
        except InvalidInput as problem:
            raise self._dependency_failed(f"cannot be used: {problem.detail}{_beginning(body)}") from problem

    def _request(self, images: Sequence[bytes]) -> tuple[bytes, dict[str, str], list[Pixels]]:
        """Body and headers of a request, and the decoded images if it has tensors."""
        how = self._endpoint.preprocessing
        if how is not None:
            pixels = [decode(image) for image in images]
            tensor = from_description(how)(pixels)
            return *kserve.request(self._endpoint.input, tensor, binary=self._endpoint.binary), pixels
        encoded = [base64.b64encode(image).decode() for image in images]
        payload = (
            {"images": encoded} if self._endpoint.protocol == "contrafact" else {"inputs": encoded[0], **_ALL_SCORES}
        )
        return json.dumps(payload).encode(), {"Content-Type": "application/json"}, []

    def _read(self, body: bytes, head_length: str, images: Sequence[bytes], pixels: Sequence[Pixels]) -> list[Answer]:
        """The answers. Raises ValueError and InvalidInput."""
        kind = KINDS[self.kind]
        if pixels:
            return kind.from_tensors(kserve.read(body, head_length, len(images)), pixels, self._description)
        return kind.parse(body, images, self.classes)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(verify=self._tls, transport=self._transport, trust_env=False)

    async def _ask(self, content: bytes, headers: dict[str, str], deadline: float, most: int) -> tuple[bytes, str]:
        """The body of the reply, and the header with the length of its JSON if binary tensors follow."""
        async with self._slots, self._client() as client:
            for attempt in range(1, ATTEMPTS + 1):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                try:
                    async with asyncio.timeout(remaining):
                        status, body, replied = await self._ask_once(
                            client, content, headers, min(remaining, 600.0), most
                        )
                        retry_after = replied.get("retry-after", "")
                except (TimeoutError, httpx.TimeoutException):
                    break
                except httpx.TransportError as error:
                    if fault := tls_fault(error):
                        raise self._dependency_failed(f"cannot be reached: {fault}") from error
                    failure, retry_after = f"{type(error).__name__}: {error}", ""
                else:
                    if status == 200:
                        return body, replied.get(kserve.HEAD_LENGTH, "")
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
        self, client: httpx.AsyncClient, content: bytes, headers: dict[str, str], seconds: float, max_bytes: int
    ) -> tuple[int, bytes, httpx.Headers]:
        """Status, body (its beginning unless it is 200) and headers of one reply.

        Raises DependencyFailed beyond `max_bytes`.
        """
        url, body = self._endpoint.url, bytearray()
        sent = self._headers | headers
        async with client.stream("POST", url, content=content, headers=sent, timeout=seconds) as reply:
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
            return reply.status_code, bytes(body), reply.headers

    def _dependency_failed(self, words: str) -> DependencyFailed:
        return DependencyFailed(f"the model at {self._endpoint.url} {words}")


def _beginning(body: bytes) -> str:
    """A sentence that quotes the first words of a reply: an error sent with status 200, another shape, or logits."""
    return beginning(storable(body[:_REFUSAL_BYTES].decode(errors="replace")))
