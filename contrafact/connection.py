"""Requests to one gateway: typed replies, typed problems, and waits at rate limits and while services start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import httpx

from shared.certificates import tls_fault, trusted
from shared.problems import DependencyFailed, NotReady, Overloaded, from_reply
from shared.schemas.base import Contract

RETRY_SECONDS = 1.0
START_PATIENCE_SECONDS = 600.0
LIMIT_PATIENCE_SECONDS = 600.0

PAGE_ROWS = 200

Reply = TypeVar("Reply", bound=Contract)
Parameters = Mapping[str, str]


class Page(Protocol):
    """A page of a listing. `next` is the cursor of the page after it, None on the last page."""

    @property
    def next(self) -> str | None: ...


PageType = TypeVar("PageType", bound=Page)


class Unreachable(DependencyFailed):
    """The gateway cannot be reached."""


class Connection:
    """A connection to one gateway. Raises the gateway's problems as subclasses of `shared.problems.Problem`."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        ca_file: Path | str = "",
    ) -> None:
        """Raises ValueError if the certificates in `ca_file` or `SSL_CERT_FILE` cannot be read."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(60.0, connect=5.0, read=600.0)
        self.http = httpx.Client(
            base_url=base_url,
            headers=headers,
            timeout=timeout,
            trust_env=False,
            transport=transport,
            verify=trusted(ca_file),
        )

    def get(self, reply_type: type[Reply], path: str, parameters: Parameters | None = None) -> Reply:
        """GET a typed reply."""
        return reply_type.model_validate_json(self.fetch(path, parameters))

    def fetch(self, path: str, parameters: Parameters | None = None) -> bytes:
        """GET the bytes of a reply."""
        return self.send(self.http.build_request("GET", path, params=dict(parameters or {}))).content

    def post(
        self,
        reply_type: type[Reply],
        path: str,
        body: Contract | None = None,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
    ) -> Reply:
        """POST an optional JSON body and return the typed reply."""
        return self.send_body("POST", reply_type, path, body, parameters, headers)

    def put(self, reply_type: type[Reply], path: str, body: Contract) -> Reply:
        """PUT a JSON body and return the typed reply."""
        return self.send_body("PUT", reply_type, path, body)

    def send_body(
        self,
        verb: str,
        reply_type: type[Reply],
        path: str,
        body: Contract | None,
        parameters: Parameters | None = None,
        headers: Parameters | None = None,
    ) -> Reply:
        """Send a JSON body, without its unset fields, and return the typed reply."""
        content = None if body is None else body.model_dump_json(exclude_unset=True, by_alias=True)
        types = {} if body is None else {"Content-Type": "application/json"}
        request = self.http.build_request(
            verb, path, content=content, params=dict(parameters or {}), headers={**types, **(headers or {})}
        )
        return reply_type.model_validate_json(self.send(request).content)

    def delete(self, path: str) -> None:
        """DELETE the resource at the path."""
        self.send(self.http.build_request("DELETE", path))

    def send(self, request: httpx.Request, allowed: int | None = None) -> httpx.Response:
        """Send a request; return a success or a reply with the allowed status. Waits while a rate limit is reached."""
        deadline = time.monotonic() + LIMIT_PATIENCE_SECONDS
        while True:
            reply = self._send_once(request)
            if reply.is_success or reply.status_code == allowed:
                return reply
            problem = from_reply(reply.status_code, reply.content, reply.headers.get("Retry-After"))
            pause = problem.retry_after or RETRY_SECONDS
            if not isinstance(problem, Overloaded) or time.monotonic() + pause > deadline:
                raise problem
            time.sleep(pause)

    @contextmanager
    def stream(
        self, path: str, query: Sequence[tuple[str, str]] = (), headers: Parameters | None = None
    ) -> Iterator[httpx.Response]:
        """GET a successful reply whose content is read inside the block."""
        try:
            with self.http.stream("GET", path, params=list(query), headers=dict(headers or {})) as reply:
                if not reply.is_success:
                    raise from_reply(reply.status_code, reply.read(), reply.headers.get("Retry-After"))
                yield reply
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _send_once(self, request: httpx.Request) -> httpx.Response:
        try:
            return self.http.send(request)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        url = self.http.base_url
        if fault := tls_fault(error):
            return Unreachable(f"{url} cannot be reached: {fault}")
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return Unreachable(f"nothing answers at {url}; start `contrafact serve`, or set CONTRAFACT_URL")
        return Unreachable(f"the connection to {url} broke off: {error!r}")


def repeat_until_ready(call: Callable[[], Reply], on_wait: Callable[[NotReady], None] = lambda _: None) -> Reply:
    """The reply of `call`, repeated while services start. Raises NotReady when one fails or the patience ends."""
    deadline = time.monotonic() + START_PATIENCE_SECONDS
    while True:
        try:
            return call()
        except NotReady as problem:
            if problem.members.get("failed") is True or time.monotonic() > deadline:
                raise
            on_wait(problem)
            time.sleep(RETRY_SECONDS)


def pages(get_page: Callable[[Parameters], PageType], filters: Parameters | None = None) -> Iterator[PageType]:
    """All pages of a listing, in order. `get_page` takes the query parameters of one page."""
    parameters = {"limit": str(PAGE_ROWS), **(filters or {})}
    while True:
        page = get_page(parameters)
        yield page
        if page.next is None:
            return
        parameters = {**parameters, "cursor": page.next}
