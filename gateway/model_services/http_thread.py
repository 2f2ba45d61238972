"""An HTTP client on an event loop in a thread of its own, so that any thread can end a request in flight.

A blocking client cannot do that: its thread waits in the socket until the reply or the timeout. Here the caller waits
for a future; cancelling it closes the connection, and the service drops the request.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future

import anyio
import httpx

from shared.certificates import trusted

CLOSE_SECONDS = 5.0


class HttpThread:
    """One connection pool. The thread starts with the first request."""

    def __init__(self, timeout: httpx.Timeout, limits: httpx.Limits) -> None:
        self.client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, verify=trusted())
        self._in_flight: dict[asyncio.Task[httpx.Response | None], anyio.CancelScope] = {}
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def send(
        self, verb: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout: httpx.Timeout
    ) -> Future[httpx.Response]:
        """Send a request. The future's `result` raises what httpx raises; its `cancel` ends the request."""
        request = self._response(verb, url, body, headers, timeout)
        return asyncio.run_coroutine_threadsafe(request, self._running_loop())

    def close(self) -> None:
        """End the requests in flight and close the connections."""
        with self._starting:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), loop).result(CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)
        loop.close()

    async def _response(
        self, verb: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout: httpx.Timeout
    ) -> httpx.Response:
        # During a request, httpcore closes other, idle connections. asyncio's cancellation would break that off and
        # leave them open; anyio's, which httpcore knows, does not.
        scope = anyio.CancelScope()

        async def request() -> httpx.Response | None:
            with scope:
                return await self.client.request(verb, url, content=body, headers=headers, timeout=timeout)
            return None

        task = asyncio.create_task(request())
        self._in_flight[task] = scope
        try:
            response = await asyncio.shield(task)
        except asyncio.CancelledError:
            scope.cancel()
            await asyncio.wait([task])
            raise
        finally:
            del self._in_flight[task]
        if response is None:
            raise asyncio.CancelledError("the client was closed")
        # httpx's stream refers to its response: a cycle, which keeps both bodies until a garbage collection.
        response.stream = httpx.ByteStream(response.content)
        return response

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="calls", daemon=True)
                self._thread.start()
            return self._loop

    async def _end(self) -> None:
        while self._in_flight:
            for scope in self._in_flight.values():
                scope.cancel()
            await asyncio.wait(list(self._in_flight))
        await self.client.aclose()
