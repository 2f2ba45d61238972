"""The gate in front of every route: who asks, from where, and how many bytes, all before a body is read.

FastAPI parses forms before it runs dependencies, so a check there would let a stranger fill the disk; this is ASGI
middleware. It leaves the owner's id in `request.state.owner`. Without API keys (embedded mode) everybody is the local
owner, so then only loopback names are served, and no page of another site may act in a browser's name.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.database import reading
from gateway.keys import owner_of
from gateway.parts import Parts
from gateway.tables import LOCAL_OWNER
from shared.problems import Forbidden, Malformed, Problem, TooLarge, Unauthorized

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json"})
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
SMALL_BODY_BYTES = 64 * 1024
MANIFEST_BYTES = 64 * 1024**2  # JSON is parsed in memory: some 300,000 images

logger = logging.getLogger("contrafact.access")


class Access:
    """Answers 400, 401, 403 or 413 itself; lets everything else through with its body counted."""

    def __init__(self, app: ASGIApp, parts: Parts) -> None:
        self._app = app
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        most = self._most_bytes(scope, headers)
        try:
            self._refuse_other_sites(scope["method"], headers)
            scope.setdefault("state", {})["owner"] = await self._owner(scope["path"], headers)
            _refuse_declared(headers.get("content-length"), most)
            if b"%00" in scope.get("raw_path", b"") or b"%00" in scope["query_string"]:
                raise Malformed("the address contains %00, which stands for no text; leave it out")
        except Problem as problem:
            await _challenged(problem, scope, headers)(scope, receive, send)
            return
        try:
            await self._app(scope, _counted(receive, most), send)
        except ClientDisconnect:
            logger.info("the client left while it was sending", extra={"path": scope["path"]})

    def _most_bytes(self, scope: Scope, headers: Headers) -> int:
        method, path = scope["method"], scope["path"]
        if method == "POST" and path == "/jobs":
            most = self._parts.settings.max_request_bytes
            in_memory = headers.get("content-type", "").lower().startswith("application/json")
            return min(most, MANIFEST_BYTES) if in_memory else most
        if method == "PUT" and path.startswith("/images/"):
            return self._parts.settings.max_image_bytes
        return SMALL_BODY_BYTES

    def _refuse_other_sites(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._parts.settings.authentication and urlsplit(f"//{host}").hostname not in LOOPBACK_HOSTS:
            raise Forbidden(
                f"without API keys only this machine is served, not {host!r}; ask localhost, or set "
                "CONTRAFACT_AUTHENTICATION=true and make keys"
            )
        if method in ("GET", "HEAD", "OPTIONS"):
            return
        origin = headers.get("origin")
        same = origin is None or urlsplit(origin).netloc == host
        if not same or headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Forbidden("a page of another site may not act here; use Contrafact's own pages, or an API key")

    async def _owner(self, path: str, headers: Headers) -> str | None:
        if not self._parts.settings.authentication:
            return LOCAL_OWNER
        if path in OPEN_PATHS:
            return None
        key = _key(headers.get("authorization", ""))
        owner = await asyncio.to_thread(self._look_up, key) if key else None
        if owner is None:
            raise Unauthorized("an API key is needed: send `Authorization: Bearer KEY`, or the key as a password")
        return owner

    def _look_up(self, key: str) -> str | None:
        with reading(self._parts.sessions) as session:
            return owner_of(session, key)


def _key(authorization: str) -> str | None:
    """The key of `Bearer KEY`, or of `Basic`, which browsers ask for, with the key as password."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return None


def _challenged(problem: Problem, scope: Scope, headers: Headers) -> ASGIApp:
    response = problem.response(scope["path"])
    if isinstance(problem, Unauthorized) and "text/html" in headers.get("accept", ""):
        response.headers["WWW-Authenticate"] = 'Basic realm="contrafact, API key as password"'
    return response


def _refuse_declared(length: str | None, most: int) -> None:
    if length is None:
        return
    if not (length.isascii() and length.isdigit()):
        raise Malformed(f"Content-Length is {length!r}; it must be a number of bytes")
    if int(length) > most:
        raise _too_large(most)


def _counted(receive: Receive, most: int) -> Receive:
    seen = 0

    async def counting() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise _too_large(most)
        return message

    return counting


def _too_large(most: int) -> TooLarge:
    return TooLarge(
        f"the body is larger than {most:,} bytes; send less, or images one by one with PUT /images/{{digest}}"
    )
