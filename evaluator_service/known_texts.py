"""Embeddings of texts, computed once: class names and captions recur in the requests of many images."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from shared.problems import DeadlineExceeded

MOST = 4096

Row = list[float]
Compute = Callable[[Sequence[str], float], Awaitable[list[Row]]]


class KnownTexts:
    """A cache of embeddings by text, in front of a batcher. Use it from one event loop.

    `compute` returns one row per text before a deadline. It gets at most `window` texts at a time from each request,
    because a batcher admits all items of a submission or none; this way a request of any size fits into its queue. The
    rows of finished windows stay in the cache when a later window fails. Concurrent requests for the same texts share
    one computation.
    """

    def __init__(self, compute: Compute, window: int) -> None:
        self._compute = compute
        self._window = max(1, window)
        self._cached: dict[str, Row] = {}
        self._pending: dict[str, asyncio.Future[dict[str, Row]]] = {}

    async def embeddings(self, texts: Sequence[str], deadline: float) -> list[Row]:
        """One row per text, in order. Raises what `compute` raises, and DeadlineExceeded (`time.monotonic()`)."""
        rows: dict[str, Row] = {}
        while missing := [text for text in dict.fromkeys(texts) if text not in rows]:
            if cached := {text: self._cached[text] for text in missing if text in self._cached}:
                rows |= cached
            elif new_texts := [text for text in missing if text not in self._pending]:
                rows |= await self._compute_window(new_texts[: self._window], deadline)
            else:
                joined = await self._join(self._pending[missing[0]], deadline)
                rows |= {text: joined[text] for text in missing if text in joined}
        return [rows[text] for text in texts]

    async def _compute_window(self, texts: Sequence[str], deadline: float) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        future: asyncio.Future[dict[str, Row]] = asyncio.get_running_loop().create_future()
        self._pending |= dict.fromkeys(texts, future)
        try:
            rows = dict(zip(texts, await self._compute(texts, deadline), strict=True))
            self._remember(rows)
        finally:  # if this failed, the requests that joined get no rows and compute these texts themselves
            for text in texts:
                del self._pending[text]
            future.set_result(rows)
        return rows

    async def _join(self, future: asyncio.Future[dict[str, Row]], deadline: float) -> dict[str, Row]:
        await asyncio.wait([future], timeout=max(0.0, deadline - time.monotonic()))
        if not future.done():
            raise DeadlineExceeded("the deadline passed before the model ran; allow more time or send less")
        return future.result()

    def _remember(self, rows: dict[str, Row]) -> None:
        if len(self._cached) + len(rows) > MOST:
            self._cached.clear()
        self._cached |= rows
