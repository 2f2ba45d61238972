"""HTTP clients of the four model services, whose endpoints `shared.service.endpoints` declares.

`ModelServices` makes the calls; `gateway.model_services.recorded` makes each only once. A call to a busy, starting or
unreachable service is retried for a bounded time. Any other error is raised at once, as the class of `shared.problems`
that the service answered with.

An HTTP client on an event loop in a thread of its own, so that any thread can end a request in flight.

A blocking client cannot do that: its thread waits in the socket until the reply or the timeout. Here the caller waits
for a future; cancelling it closes the connection, and the service drops the request.

Splits requests whose images exceed one message, and joins the replies.

End the calls of a step from another thread, because its job was cancelled or deleted, or the worker stops.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from itertools import chain
from typing import Any, TypeVar

import anyio
import httpx
from pydantic import ValidationError

from gateway.metrics import CALLS
from gateway.model_services.waiting import current_waiting
from shared.certificates import trusted
from shared.media.admission import Budget
from shared.problems import (
    DeadlineExceeded,
    DependencyFailed,
    NotReady,
    OutOfMemory,
    Overloaded,
    Problem,
    UnusableReply,
    from_reply,
)
from shared.schemas.base import MAX_MESSAGE_BYTES, Contract, ImagePayload
from shared.schemas.evaluation import ModelsReply
from shared.schemas.service import ServiceInfo, ServiceName
from shared.service.endpoints import INFO, MODELS, Description, Endpoint, Reply, Request, Services
from shared.service.logging import REQUEST_ID_HEADER, mask, request_id
from shared.service.settings import DEADLINE_HEADER
from shared.service.turns import START_TIME_HEADER, current_start_time

Answer = TypeVar("Answer")
_PER_IMAGE_BYTES = len('{"png":""},')  # the JSON around the base64 of an image; the last one has no comma
CLOSE_SECONDS = 5.0
DESCRIPTION_SECONDS = 60.0
MAX_PAUSE_SECONDS = 10.0
KEEP_IDLE_SECONDS = 2.0  # uvicorn closes idle connections after 5 s; a request sent at that moment is lost
GRACE_SECONDS = 10.0
BODY_BYTES = 256 * 1024**2
COPIES = 4  # of a request's images, in base64: as text and as bytes, and a reply with an image of that size


class BrokenOff(DependencyFailed):
    """The service died, timed out or sent an unreadable reply; the request itself may be the cause."""


class ModelServices(Services):
    """The plain clients, with one connection pool for all services. Thread-safe.

    `deadline` is the longest duration of one call in seconds, `wait` the time for retries while a service is busy or
    starting: of one call, or of all calls within `shared_waiting` (`gateway.model_services.waiting`). Once `stopping`
    is set, retries end. A call within `cancellable` (`gateway.model_services.clients`) can be ended from another
    thread; it then raises `Cancelled`.
    """

    def __init__(
        self,
        urls: Mapping[ServiceName, str],
        deadline: float = 600.0,
        wait: float = 120.0,
        stopping: threading.Event | None = None,
    ) -> None:
        self._urls = dict(urls)
        self._deadline = deadline
        self.wait = wait
        self.stopping = stopping or threading.Event()
        self._http = HttpThread(
            httpx.Timeout(deadline + GRACE_SECONDS, connect=5.0),
            httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=KEEP_IDLE_SECONDS),
        )
        self._descriptions: dict[ServiceName, tuple[ServiceInfo, float]] = {}
        self._bodies = Budget(lambda: BODY_BYTES)

    def close(self) -> None:
        """Close the connections; calls in flight end."""
        self._http.close()

    def call(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
        """POST the request, in parts if its images exceed one message. See the class and `Services.call`.

        Waits while the calls in flight hold too many bytes: the edits of an image are calls that each send it.
        """
        replies = []
        size = COPIES * min(image_bytes(request), MAX_MESSAGE_BYTES)
        with self._bodies.admit(size, refuse_cancelled):
            for body in parts(endpoint, request):
                reply = self._patiently(endpoint.service, "POST", endpoint.path, body, endpoint.deadline)
                replies.append(_read(endpoint.reply, reply, endpoint.service))
        return join(endpoint, replies)

    def call_each(
        self, endpoint: Endpoint[Request, Reply], requests: Sequence[Request]
    ) -> Iterator[tuple[int, Reply | Exception]]:
        """Make calls at the same time, so that the service can batch them, each with its own deadline and retries.

        Yields the place of each request with its reply or error as soon as it has one. Ends once all calls have.
        """
        if len(requests) == 1:
            yield 0, self._outcome(endpoint, requests[0])
            return
        with ThreadPoolExecutor(len(requests), thread_name_prefix="call") as threads:
            calls = {
                threads.submit(copy_context().run, self._outcome, endpoint, request): place
                for place, request in enumerate(requests)
            }
            for call in as_completed(calls):
                yield calls[call], call.result()

    def _outcome(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply | Exception:
        try:
            return self.call(endpoint, request)
        except Problem as problem:
            return problem.with_traceback(None)  # it keeps the frames of the call, and so the bodies
        except Exception as error:  # as `Cancelled`; siblings that have their reply keep it
            return error

    def info(self, service: ServiceName) -> ServiceInfo:
        """The service's current description of itself."""
        return self._describe(service, INFO)

    def models(self) -> ModelsReply:
        """The evaluator's models under test."""
        return self._describe("evaluator_service", MODELS)

    def description(self, service: ServiceName) -> ServiceInfo:
        """As `info`, but cached for a minute, or until the service seems to restart."""
        cached = self._descriptions.get(service)
        if cached is not None and time.monotonic() - cached[1] < DESCRIPTION_SECONDS:
            return cached[0]
        info = self.info(service)
        self._descriptions[service] = info, time.monotonic()
        return info

    def revision(self, service: ServiceName) -> str:
        """The revision of a service's weights, from its `description`."""
        return self.description(service).revision

    def _describe(self, service: ServiceName, description: Description[Reply]) -> Reply:
        return _read(description.reply, self._patiently(service, "GET", description.path), service)

    def _patiently(
        self, service: ServiceName, verb: str, path: str, body: bytes | None = None, deadline: float | None = None
    ) -> bytes:
        waiting = current_waiting(self.wait)
        pause = 0.25
        while True:
            began = time.monotonic()
            try:
                return self._once(service, verb, path, body, self._deadline if deadline is None else deadline)
            except (Overloaded, NotReady) as problem:
                if isinstance(problem, NotReady):
                    self._descriptions.pop(service, None)  # it may come back with other weights
                pause = min(MAX_PAUSE_SECONDS, problem.retry_after or 2 * pause)
                hopeless = problem.members.get("failed") is True
                patient = waiting.spend(time.monotonic() - began + pause)
                if hopeless or not patient or self._stops_within(pause):
                    raise

    def _stops_within(self, seconds: float) -> bool:
        """Wait before a retry. Returns True if the process stops, so no retry may follow. Raises Cancelled."""
        cancellation = current_cancellation()
        if cancellation is None:
            return self.stopping.wait(seconds)
        cancellation.pause(seconds)
        return self.stopping.is_set()

    def _once(self, service: ServiceName, verb: str, path: str, body: bytes | None, deadline: float) -> bytes:
        headers = {DEADLINE_HEADER: f"{deadline:g}", "Content-Type": "application/json"}
        patience = httpx.Timeout(deadline + GRACE_SECONDS, connect=5.0)
        if name := request_id():
            headers[REQUEST_ID_HEADER] = name
        if (began := current_start_time()) is not None:
            headers[START_TIME_HEADER] = f"{began:.6f}"
        started, outcome = time.monotonic(), "unreachable"
        try:
            reply = self._reply(verb, self._urls[service] + path, body, headers, patience)
            outcome = str(reply.status_code)
        except Cancelled:
            outcome = "cancelled"
            raise
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = f"{service} at {mask(self._urls[service])} cannot be reached: {error}"
            raise NotReady(reason, members={"unreachable": service}) from error
        except httpx.TimeoutException as error:
            raise BrokenOff(f"{service} did not answer {path} within {deadline:g} s") from error
        except httpx.TransportError as error:
            self._descriptions.pop(service, None)
            raise BrokenOff(f"{service} broke off during {path}: {error!r}") from error
        finally:
            CALLS.labels(service, path, outcome).observe(time.monotonic() - started)
        if reply.status_code == 200:
            return reply.content
        raise _problem(service, path, reply)  # not by a local name: its traceback keeps this frame, and so the bodies

    def _reply(
        self, verb: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout: httpx.Timeout
    ) -> httpx.Response:
        request = self._http.send(verb, url, body, headers, timeout)
        cancellation = current_cancellation()
        if cancellation is not None:
            return cancellation.result(request)
        try:
            return request.result()
        except CancelledError as error:  # by `close`
            raise Cancelled from error


def is_passing(problem: Problem) -> bool:
    """Whether the problem is temporary (a busy, absent or stopping service), not caused by this request.

    An invalid reply, or an image that is too large for the device, would fail again. If a service fails for many
    images, `breaker` decides which failures count.
    """
    if isinstance(problem, UnusableReply | OutOfMemory):
        return False
    return isinstance(problem, Overloaded | NotReady | DependencyFailed | DeadlineExceeded)


def _problem(service: ServiceName, path: str, reply: httpx.Response) -> Problem:
    """The problem that an error reply states, or BrokenOff if the service does not explain its error."""
    problem = from_reply(reply.status_code, reply.content, reply.headers.get("Retry-After"))
    explained = type(problem) not in (Problem, DependencyFailed)
    if explained or reply.status_code in (429, 502, 503, 504):  # those may be the answers of a proxy
        return problem
    return BrokenOff(f"{service} failed at {path}: {problem.detail}")


def _read(message: type[Reply], body: bytes, service: ServiceName) -> Reply:
    try:
        return message.model_validate_json(body)
    except ValidationError as error:
        raise BrokenOff(f"{service} returned something other than a {message.__name__}: {error}") from error


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


def parts(endpoint: Endpoint[Request, Reply], request: Request, most: int = MAX_MESSAGE_BYTES) -> Iterator[bytes]:
    """The request as JSON messages of up to `most` bytes, in the order of its images; one message if it fits.

    A request that cannot be split stays whole, and the service refuses it. So does an image that is too large together
    with the request's other fields.
    """
    images: Sequence[ImagePayload] = getattr(request, "images", ()) if endpoint.per_image else ()
    if len(images) < 2:
        yield request.model_dump_json().encode()
        return
    room = most - len(_part(request, []))
    start = used = 0
    for index, image in enumerate(images):
        size = 4 * -(-len(image.png) // 3) + _PER_IMAGE_BYTES
        if index > start and used + size - 1 > room:
            yield _part(request, images[start:index])
            start, used = index, 0
        used += size
    yield _part(request, images[start:])


def join(endpoint: Endpoint[Request, Reply], replies: Sequence[Reply]) -> Reply:
    """The reply to the whole request, joined from the replies to its parts."""
    if len(replies) == 1:
        return replies[0]
    lists = {name: [getattr(reply, name) for reply in replies] for name in endpoint.per_image}
    joined = {name: [*chain(*each)] for name, each in lists.items() if None not in each}  # None: no such list
    return replies[0].model_copy(update=joined)


def image_bytes(message: object) -> int:
    """The bytes of the images in a message, as PNG."""
    match message:
        case ImagePayload():
            return len(message.png)
        case Contract():
            return sum(image_bytes(value) for value in vars(message).values())
        case list() | tuple():
            return sum(image_bytes(value) for value in message)
        case _:
            return 0


def _part(request: Request, images: Sequence[ImagePayload]) -> bytes:
    return request.model_copy(update={"images": list(images)}).model_dump_json().encode()


class Cancelled(Exception):
    """The call was ended before its reply."""


class Cancellation:
    """The calls in flight of one step. Once cancelled, every call of the step ends at once. Thread-safe."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._cancelled = threading.Event()
        self._calls: set[Future[Any]] = set()

    def cancel(self) -> None:
        """End the calls in flight, and later ones as soon as they begin."""
        with self._changing:
            self._cancelled.set()
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def pause(self, seconds: float) -> None:
        """Wait before a retry. Raises Cancelled."""
        if self._cancelled.wait(seconds):
            raise Cancelled

    def result(self, call: Future[Answer]) -> Answer:
        """The result of a call. Raises Cancelled, and what the call raises."""
        with self._changing:
            self._calls.add(call)
        if self._cancelled.is_set():
            call.cancel()
        try:
            return call.result()
        except CancelledError as error:
            raise Cancelled from error
        finally:
            with self._changing:
                self._calls.discard(call)


_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


@contextmanager
def cancellable(cancellation: Cancellation) -> Iterator[None]:
    """Let `cancellation` end the calls that this thread makes within the block."""
    token = _current.set(cancellation)
    try:
        yield
    finally:
        _current.reset(token)


def current_cancellation() -> Cancellation | None:
    """The cancellation of the block that this thread is in; None outside `cancellable`."""
    return _current.get()


def refuse_cancelled() -> None:
    """Raises Cancelled if the block that this thread is in is cancelled."""
    if (cancellation := _current.get()) is not None:
        cancellation.pause(0)
