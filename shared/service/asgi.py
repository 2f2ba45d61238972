"""ASGI middleware: limit request bodies, cancel work when the client disconnects, log every request."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from prometheus_client import CollectorRegistry, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.problems import TooLarge
from shared.service.endpoints import HEALTHZ, METRICS, READYZ
from shared.service.logging import REQUEST_ID_HEADER, bind, request_id_from
from shared.service.problem_replies import problem_reply

logger = logging.getLogger("contrafact.http")
QUIET_PATHS = frozenset({HEALTHZ, READYZ, METRICS})
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
SECONDS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
LINGERING_BYTES = 8 * 1024**2  # read and dropped after a refusal
LINGERING_SECONDS = 2.0


class BoundedRequests:
    """Reads bodies of up to `max_bytes` (413 beyond that) and cancels the app when the client disconnects."""

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
            await _discard_body(receive)
            response = problem_reply(problem, scope["path"])
            response.headers["Connection"] = "close"  # otherwise the server keeps reading the refused body
            await response(scope, receive, send)
            return
        if body is not None:
            await self._serve(scope, body, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the whole body, or None if the client disconnected while sending it."""
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
        disconnected = asyncio.Event()
        unread = [body]

        async def replay() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            disconnected.set()

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


async def _discard_body(receive: Receive) -> None:
    """Read and drop the rest of a refused body, within limits. If bytes stay unread, the client loses the response."""
    remaining = LINGERING_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGERING_SECONDS):
            while remaining > 0:
                message = await receive()
                remaining -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


class AccessLog:
    """Writes one log line and one latency observation per request, and assigns the request id.

    The id is the caller's `X-Request-ID` or a new one. It is bound to all log lines of the request and returned in the
    same header.
    """

    def __init__(self, app: ASGIApp, service: str, registry: CollectorRegistry) -> None:
        self._app = app
        self._service = service
        self._seconds = Histogram(
            "contrafact_http_request_seconds",
            "From the first byte of a request to the last of its answer; streams of events last as long as their job.",
            ["service", "method", "route", "status"],
            registry=registry,
            buckets=SECONDS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        request_id = request_id_from(Headers(scope=scope).get(REQUEST_ID_HEADER))
        bind(request_id=request_id)
        started = time.monotonic()
        status = 499  # what proxies log for a client that disconnected before the response

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_and_record)
        except Exception:
            status = 500  # the outer exception handler responds and logs the traceback
            raise
        finally:
            self._record(scope, status, time.monotonic() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")  # the pattern, because the number of paths is unbounded
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._seconds.labels(self._service, method, route, status).observe(seconds)
        fields = {"service": self._service, "status": status, "seconds": round(seconds, 4)}
        logger.info("%s %s", scope["method"], scope["path"], extra=fields)
