"""ASGI middleware of the model services: bodies bounded while they stream, work cancelled when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.problems import TooLarge

logger = logging.getLogger("contrafact.http")
QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})


class BoundedRequests:
    """Reads each body at most `max_bytes` long (413 beyond that) and cancels the app when the client disconnects."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except TooLarge as problem:
            response = problem.response(scope["path"])
            response.headers["Connection"] = "close"  # or the server would go on reading what we refused
            await response(scope, receive, send)
            return
        if body is not None:
            await self._serve(scope, body, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body, or None when the client left while sending it."""
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        size = int(declared) if declared.isdigit() else 0
        chunks: list[bytes] = []
        received = 0
        more = True
        while more:
            if max(size, received) > self._max_bytes:
                raise TooLarge(f"the body is larger than {self._max_bytes} bytes; send fewer or smaller images")
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk: bytes = message.get("body", b"")
            received += len(chunk)
            chunks.append(chunk)
            more = message.get("more_body", False)
        if received > self._max_bytes:
            raise TooLarge(f"the body is larger than {self._max_bytes} bytes; send fewer or smaller images")
        return b"".join(chunks)

    async def _serve(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        left = asyncio.Event()
        unread = [body]

        async def replay() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()

        work = asyncio.ensure_future(self._app(scope, replay, send))
        watcher = asyncio.ensure_future(watch())
        try:
            await asyncio.wait({work, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                logger.info("client left", extra={"path": scope["path"]})
        finally:
            for task in (work, watcher):
                if not task.done():
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task


class AccessLog:
    """One log line per request: method, path, status, seconds."""

    def __init__(self, app: ASGIApp, service: str) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = [499]  # what proxies log for a client that left before the answer

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            fields = {"service": self._service, "status": status[0], "seconds": round(time.monotonic() - started, 4)}
            logger.info("%s %s", scope["method"], scope["path"], extra=fields)
