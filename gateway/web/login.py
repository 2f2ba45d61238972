"""The login page exchanges an API key for a session, so that the browser does not store the key."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from gateway.api.dependencies import Gateway
from gateway.api.forms import refuse_other_types
from gateway.auth.middleware import COOKIE, TOKEN_COOKIE, csrf_token, refuse_other_sites
from gateway.auth.sessions import log_in, log_out
from gateway.context import Context
from gateway.web.rendering import render

HOME = "/"

router = APIRouter(include_in_schema=False)


@router.get("/login")
def show_login(gateway: Gateway, next: str = HOME) -> Response:
    """The login form. Redirects to the home page if the deployment requires no keys."""
    if not gateway.settings.authentication:
        return RedirectResponse(HOME, 303)
    return render("login.html", next=_local_path(next), problem="")


@router.post("/login")
async def accept_login(request: Request, gateway: Gateway) -> Response:
    """Set the session's cookies for a valid key. Refuses other sites, which could log a browser in to their account."""
    refuse_other_sites(request.method, request.headers, silent=False)
    refuse_other_types(request, "application/x-www-form-urlencoded")
    async with request.form(max_fields=2) as form:
        key, target = str(form.get("key", "")).strip(), _local_path(str(form.get("next", HOME)))
    cookie = await run_in_threadpool(_log_in, gateway, key)
    if cookie is None:
        problem = "This key is not valid. Ask the operator of this installation for one."
        return render("login.html", 401, next=target, problem=problem)
    reply = RedirectResponse(target, 303)
    secure = urlsplit(request.headers.get("origin", "")).scheme == "https" or request.url.scheme == "https"
    seconds = int(gateway.settings.session_hours * 3600)
    reply.set_cookie(COOKIE, cookie, seconds, httponly=True, samesite="lax", secure=secure)
    reply.set_cookie(TOKEN_COOKIE, csrf_token(cookie), seconds, httponly=False, samesite="strict", secure=secure)
    return reply


@router.post("/logout", status_code=204)
def accept_logout(request: Request, gateway: Gateway) -> Response:
    """End the browser's session: delete it from the database, and its cookies."""
    with gateway.sessions.begin() as session:
        log_out(session, request.cookies.get(COOKIE, ""))
    reply = Response(status_code=204)
    reply.delete_cookie(COOKIE, httponly=True, samesite="lax")
    reply.delete_cookie(TOKEN_COOKIE, samesite="strict")
    return reply


def _log_in(gateway: Context, key: str) -> str | None:
    with gateway.sessions.begin() as session:
        return log_in(session, key, gateway.settings.session_hours)


def _local_path(text: str) -> str:
    """The path to redirect to: `text` if it is a path of this site, else the home page."""
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and len(text) <= 2_000
    return text if is_own else HOME
