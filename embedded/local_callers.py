"""ASGI middleware for the model services of an embedded system: without keys, only this machine may call them."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.auth.middleware import refuse_other_machines
from shared.problem_replies import problem_reply
from shared.problems import Forbidden


class LocalCallers:
    """Answers 403 to requests whose Host, Origin or address is not this machine's, such as those of web pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                refuse_other_machines(scope, Headers(scope=scope), "ask it by its address on 127.0.0.1")
            except Forbidden as problem:
                await problem_reply(problem, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)
