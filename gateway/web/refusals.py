"""Problems as pages: a browser that asks for HTML gets a page, every other client the problem document."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.responses import Response

from gateway.web.rendering import render
from shared.problems import MEDIA_TYPE

Handler = Callable[[Request, Any], Response | Awaitable[Response]]


def install(app: FastAPI) -> None:
    """Show the replies of the app's exception handlers as pages to browsers. Call it after all handlers are added."""
    for error, handler in list(app.exception_handlers.items()):
        app.exception_handlers[error] = _with_page(handler)


def as_page(reply: Response, headers: Headers) -> Response:
    """The problem document `reply` as a page if the request's `headers` ask for HTML; any other reply unchanged."""
    if reply.media_type != MEDIA_TYPE or "text/html" not in headers.get("accept", ""):
        return reply
    page = render("refused.html", reply.status_code, problem=json.loads(bytes(reply.body))["detail"])
    for name in ("Allow", "Retry-After", "WWW-Authenticate"):
        if name in reply.headers:
            page.headers[name] = reply.headers[name]
    return page


def _with_page(handler: Handler) -> Handler:
    async def handle(request: Request, error: Exception) -> Response:
        reply = handler(request, error)
        if inspect.isawaitable(reply):
            reply = await reply
        return as_page(reply, request.headers)

    return handle
