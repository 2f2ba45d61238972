"""Models under test behind somebody's HTTP server, named by the operator in the profile, never by a user.

    POST url   {"images": ["<base64 of a PNG>", ...]}     at most `max_batch` of them, RGB, as the user sent them
    200        {"probabilities": [[...], ...]}            a row per image, a number per class in the profile's order

Busy (429), starting (503) and failing (500, 502, 504) servers are asked again, within the caller's deadline.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Sequence

import httpx
import numpy as np
from pydantic import BaseModel, ValidationError

from shared.problems import DeadlineExceeded, DependencyFailed
from shared.profiles import ModelEndpoint

ATTEMPTS = 5
LONGEST_PAUSE = 10.0
SUM_TOLERANCE = 0.01
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


class _Answer(BaseModel):
    probabilities: list[list[float]]


class EndpointClassifier:
    """A classifier that somebody serves."""

    def __init__(self, endpoint: ModelEndpoint, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Raises ValueError where the environment lacks the endpoint's key."""
        key = os.environ.get(endpoint.api_key_variable, "") if endpoint.api_key_variable else ""
        if endpoint.api_key_variable and not key:
            raise ValueError(f"set the environment variable {endpoint.api_key_variable} to the key of {endpoint.url}")
        self._endpoint = endpoint
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._transport = transport
        self._places = asyncio.Semaphore(endpoint.concurrency)
        self.classes = list(endpoint.classes)

    async def probabilities(self, images: Sequence[bytes], deadline: float) -> list[list[float]]:
        """Images (PNG) × classes. Raises DeadlineExceeded and DependencyFailed."""
        size = self._endpoint.max_batch
        parts = [images[start : start + size] for start in range(0, len(images), size)]
        answers = await asyncio.gather(*(self._ask(part, deadline) for part in parts))
        return [row for rows in answers for row in rows]

    async def _ask(self, images: Sequence[bytes], deadline: float) -> list[list[float]]:
        body = {"images": [base64.b64encode(image).decode() for image in images]}
        async with self._places, httpx.AsyncClient(transport=self._transport, trust_env=False) as client:
            for attempt in range(1, ATTEMPTS + 1):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                try:
                    reply = await client.post(
                        self._endpoint.url, json=body, headers=self._headers, timeout=min(remaining, 600.0)
                    )
                except httpx.TimeoutException:
                    break
                except httpx.TransportError as error:
                    failure, stated = f"{type(error).__name__}: {error}", ""
                else:
                    if reply.status_code == 200:
                        return self._read(reply.content, len(images))
                    failure, stated = f"status {reply.status_code}", reply.headers.get("retry-after", "")
                    if reply.status_code not in _RETRIED:
                        raise DependencyFailed(f"the model at {self._endpoint.url} refused: {failure}")
                if attempt == ATTEMPTS:
                    raise DependencyFailed(f"the model at {self._endpoint.url} failed {ATTEMPTS} times: {failure}")
                pause = float(stated) if stated.isdigit() else 0.25 * 2**attempt
                await asyncio.sleep(max(0.0, min(pause, LONGEST_PAUSE, deadline - time.monotonic())))
        raise DeadlineExceeded(f"no answer from the model at {self._endpoint.url} before the deadline")

    def _read(self, body: bytes, images: int) -> list[list[float]]:
        url, classes = self._endpoint.url, len(self.classes)
        try:
            rows = _Answer.model_validate_json(body).probabilities
        except ValidationError as error:
            raise DependencyFailed(f'the model at {url} answered no {{"probabilities": [[...]]}}') from error
        if len(rows) != images or any(len(row) != classes for row in rows):
            raise DependencyFailed(f"the model at {url} must answer {images} rows of {classes} probabilities")
        array = np.array(rows)
        summed = np.isfinite(array).all() and (array >= 0).all() and np.allclose(array.sum(1), 1, atol=SUM_TOLERANCE)
        if not summed:
            raise DependencyFailed(f"the model at {url} answered rows that are no probabilities (they must sum to 1)")
        return rows
