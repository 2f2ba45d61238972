"""Access control in front of every route: authentication, origin, scope, rate and size, before a body is read.

FastAPI parses forms before it runs dependencies, so a check there would let a stranger fill the disk. Hence this is
ASGI middleware. It sets `owner` (an id) and `reviewer` in `request.state`. A caller sends an API key, or a browser the
cookie of its session. Without API keys (embedded mode) every caller is the local owner, so only this machine is served,
and pages of other sites are refused.

The size of a request's body: declared, and counted while it comes in.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from urllib.parse import SplitResult, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth import keys
from gateway.auth.keys import PREFIX, Caller, Limits
from gateway.context import Context
from gateway.database.sessions import DATABASE_AWAY
from gateway.database.tables import LOCAL_OWNER
from shared.media.admission import Spool
from shared.media.storage import LINK_PATH
from shared.problems import Forbidden, Malformed, NotReady, Problem, TooLarge, Unauthorized
from shared.service.endpoints import HEALTHZ, READYZ
from shared.service.problem_replies import problem_reply

LUMP_BYTES = 8 * 1024**2  # bodies of unknown length are counted in steps of this size
OPEN_PATHS = frozenset({HEALTHZ, READYZ, "/openapi.json", "/login"})
FORM_PATH = "/"
PLAN_PATH = "/plan"  # the same form before it is sent: with an archive or masks, whole files
# These forms work without scripts, so they send no token; the browser's Origin header is checked instead.
FORMS = re.compile(r"/|/jobs/[^/]+/(notes|studies/(view|[^/]+/(invitations|answers|delete)))")
RATE_PATH = "/rate/"  # the pages of raters: the token in the path shows who asks (`gateway.feedback.raters`)
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# A suite's name may contain any of these words.
REVIEWS = re.compile(r"/jobs/[^/]+/((reviews|own-images|findings)(/|$)|(report|notes)$)")
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
SMALL_BODY_BYTES = 64 * 1024
STUDY_ANSWERS = re.compile(r"/studies/[^/]+/answers\.csv|/jobs/[^/]+/studies/[^/]+/answers")
STUDY_ANSWERS_BYTES = 8 * 1024**2  # some 100,000 ratings
MANIFEST_BYTES = 64 * 1024**2  # JSON is parsed in memory: some 300,000 images
MAX_BYTES_IN_MEMORY = 512 * 1024**2  # of all bodies that come in at a time, except forms, whose files are on disk

COOKIE = "contrafact_session"
TOKEN_COOKIE = "contrafact_csrf"  # readable by our scripts, which send it back in the header below
TOKEN_HEADER = "X-CSRF-Token"

_WITHOUT_KEYS = "ask localhost, or set CONTRAFACT_AUTHENTICATION=true and make keys"

logger = logging.getLogger("contrafact.access")


class Access:
    """Answers 400, 401, 403, 413, 429 or 503 itself; passes all other requests on and counts their bodies.

    `as_page` shows a refusal to a browser: it gets the problem document and the request's headers.
    """

    def __init__(self, app: ASGIApp, context: Context, as_page: Callable[[Response, Headers], Response]) -> None:
        self._app = app
        self._context = context
        self._as_page = as_page
        settings = context.settings
        self._limits = Limits(settings.key_requests_per_minute, settings.key_bytes_per_hour)
        self._forms = Spool(settings.max_spooled_bytes)
        self._in_memory = Spool(min(MAX_BYTES_IN_MEMORY, settings.max_spooled_bytes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        send = _as_declared(send)
        is_form = scope["method"] == "POST" and headers.get("content-type", "").lower().startswith("multipart/")
        spool = self._forms if is_form else self._in_memory
        with spool.counting() as spooled:
            try:
                body = await self._admit(scope, headers, receive, spool, spooled)
            except Problem as problem:
                await self._as_page(_refusal(problem, scope, headers), headers)(scope, receive, send)
                return
            except DATABASE_AWAY as error:
                logger.warning("the database does not answer: %s", error)
                refusal = problem_reply(no_database(), scope["path"])
                await self._as_page(refusal, headers)(scope, receive, send)
                return
            try:
                await self._app(scope, body, send)
            except ClientDisconnect:
                logger.info("the client left while it was sending", extra={"path": scope["path"]})

    async def _admit(
        self, scope: Scope, headers: Headers, receive: Receive, spool: Spool, spooled: Callable[[int], None]
    ) -> Receive:
        """The body, counted against the limits of key and process. Sets owner and reviewer in `scope["state"]`.

        Raises Problem.
        """
        if self._context.settings.authentication:
            refuse_other_sites(scope["method"], headers)
        else:
            refuse_other_machines(scope, headers, _WITHOUT_KEYS)
        caller = await self._caller(scope["method"], scope["path"], headers)
        state = scope.setdefault("state", {})
        state["owner"] = caller.owner if caller else None
        state["reviewer"] = caller.key_id or LOCAL_OWNER if caller else None
        most = self._most_bytes(scope["method"], scope["path"], headers, caller)
        declared = declared_length(headers.get("content-length"), most)
        if b"%00" in scope.get("raw_path", b"") or b"%00" in scope["query_string"]:
            raise Malformed("the URL contains %00; remove it")
        key_hash = caller.key_hash if caller else None

        async def pay(size: int) -> None:
            if key_hash is not None:
                await asyncio.to_thread(self._book, key_hash, 0, size)

        if declared:
            spool.refuse_without_room(declared)
            await pay(declared)
        return count_bytes(receive, most, declared or 0, pay, spooled)

    async def _caller(self, method: str, path: str, headers: Headers) -> Caller | None:
        """The caller; None on paths that need no key."""
        if not self._context.settings.authentication:
            return Caller(LOCAL_OWNER)
        if path in OPEN_PATHS or path.startswith(("/static/", RATE_PATH, LINK_PATH)):  # a link shows its own signature
            return None
        key, cookie = _credentials(headers)
        if key is None and cookie is None:
            raise Unauthorized("an API key is needed: send `Authorization: Bearer KEY`, or log in at /login")
        if key is None and cookie is not None and method not in SAFE_METHODS:
            if FORMS.fullmatch(path):
                refuse_other_sites(method, headers, silent=False)
            else:
                _check_token(cookie, headers)
        key_id = keys.hash_of(key) if key is not None else keys.key_of_login(cookie or "")
        caller = await asyncio.to_thread(self._book, key_id, 1, 0)
        if caller is None:
            advice = "this API key is unknown or revoked; ask the operator for one"
            raise Unauthorized(advice if key else "your login has expired; log in again at /login")
        needed = _needed_scope(method, path)
        if needed is not None and not caller.may(needed):
            scopes = " and ".join(sorted(caller.scopes)) or "no scope but reading"
            raise Forbidden(f"this key has {scopes}; this request needs {needed}. Ask the operator for a key with it")
        return caller

    def _book(self, key_id: keys.KeyId, requests: int, size: int) -> Caller | None:
        with self._context.sessions.begin() as session:
            return keys.admit(session, key_id, self._limits, requests, size)

    def _most_bytes(self, method: str, path: str, headers: Headers, caller: Caller | None) -> int:
        settings = self._context.settings
        if method == "POST" and path in ("/jobs", FORM_PATH, PLAN_PATH):
            most = settings.max_request_bytes
            if headers.get("content-type", "").lower().startswith("application/json"):
                most = min(most, MANIFEST_BYTES)
        elif method == "POST" and path == "/models":
            most = settings.max_model_bytes
        elif method == "PUT" and path.startswith("/images/"):
            most = settings.max_image_bytes
        elif method in ("PUT", "POST") and STUDY_ANSWERS.fullmatch(path):
            most = STUDY_ANSWERS_BYTES
        else:
            most = SMALL_BODY_BYTES
        return most if caller is None or caller.max_bytes is None else min(most, caller.max_bytes)


def refuse_other_sites(method: str, headers: Headers, *, silent: bool = True) -> None:
    """Refuse requests that pages of other sites make a browser send. `silent` accepts clients that are not browsers.

    Raises Forbidden.
    """
    if method in SAFE_METHODS:
        return
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    states_origin = origin is not None or site is not None
    same_origin = origin is None or _split_url(origin).netloc == headers.get("host", "")
    if not same_origin or (site or "none") not in ("same-origin", "none") or not (states_origin or silent):
        raise Forbidden("requests from pages of other sites are refused; use Contrafact's own pages, or an API key")


def csrf_token(cookie: str) -> str:
    """The token that a page's scripts must send with every change, in addition to the cookie."""
    return hashlib.sha256(b"csrf/" + cookie.encode()).hexdigest()


def refuse_other_machines(scope: Scope, headers: Headers, advice: str) -> None:
    """Refuse requests from other machines, and those that pages of other sites make a browser send.

    The check of the Host header stops DNS rebinding: a foreign page whose name resolves to this machine. Raises
    Forbidden.
    """
    host, client = headers.get("host", ""), scope.get("client")
    near = client is None or not _is_address(client[0]) or ip_address(client[0]).is_loopback
    if _split_url(f"//{host}").hostname not in LOOPBACK_HOSTS or not near:
        raise Forbidden(f"only requests from this machine are served, not those to {host!r}; {advice}")
    refuse_other_sites(scope["method"], headers)


def no_database() -> NotReady:
    """The problem to answer with while the database is away."""
    return NotReady("the database does not answer; nothing was changed, try again soon", retry_after=5)


def _split_url(address: str) -> SplitResult:
    """The parts of a URL; empty parts if it is not one."""
    try:
        return urlsplit(address)
    except ValueError:
        return SplitResult("", "", "", "", "")


def _as_declared(send: Send) -> Send:
    """Add `nosniff`, so that browsers trust the declared content type."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["X-Content-Type-Options"] = "nosniff"
        await send(message)

    return sending


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _credentials(headers: Headers) -> tuple[str | None, str | None]:
    """The API key of the request, and the cookie of a browser's session."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    key = value.strip() if scheme.lower() == "bearer" else ""
    cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
    return key if key.startswith(PREFIX) else None, cookie or None


def _check_token(cookie: str, headers: Headers) -> None:
    if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), csrf_token(cookie).encode()):
        raise Forbidden(f"the header {TOKEN_HEADER} is missing or wrong; reload the page")


def _needed_scope(method: str, path: str) -> keys.Scope | None:
    """The scope that a request needs; every key may read its own work."""
    if path == "/metrics":
        return "admin"
    if method in SAFE_METHODS or path == "/logout":
        return None
    return "review" if REVIEWS.match(path) else "submit"


def _refusal(problem: Problem, scope: Scope, headers: Headers) -> Response:
    """The problem document; for a browser without a session, a redirect to the login."""
    if (
        isinstance(problem, Unauthorized)
        and scope["method"] == "GET"
        and "text/html" in headers.get("accept", "")
        and "authorization" not in headers
    ):
        query = scope["query_string"].decode("latin-1")
        target = quote(scope["path"]) + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(target, safe='')}", 303)
    return problem_reply(problem, scope["path"])


def declared_length(length: str | None, most: int) -> int | None:
    """The Content-Length of a request, None without one. Raises Malformed, and TooLarge beyond `most` bytes."""
    if length is None:
        return None
    if not (length.isascii() and length.isdigit()):
        raise Malformed(f"Content-Length is {length!r}; it must be a number of bytes")
    if int(length) > most:
        raise _too_large(most)
    return int(length)


def count_bytes(
    receive: Receive, most: int, paid: int, pay: Callable[[int], Awaitable[None]], spooled: Callable[[int], None]
) -> Receive:
    """Count the body. `paid` bytes are charged to the key already; further ones are charged per `LUMP_BYTES`."""
    received = 0

    async def counting() -> Message:
        nonlocal received, paid
        message = await receive()
        size = len(message.get("body", b""))
        received += size
        if received > most:
            raise _too_large(most)
        spooled(size)
        while received > paid:
            await pay(min(LUMP_BYTES, most))
            paid += LUMP_BYTES
        return message

    return counting


def _too_large(most: int) -> TooLarge:
    return TooLarge(
        f"the body is larger than {most:,} bytes; send less, or images one by one with PUT /images/{{digest}}"
    )
