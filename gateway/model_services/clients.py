"""HTTP clients of the four model services, whose endpoints `shared.endpoints` declares.

`ModelServices` makes the calls; `gateway.model_services.recorded` makes each only once. A call to a busy, starting or
unreachable service is retried for a bounded time. Any other error is raised at once, as the class of `shared.problems`
that the service answered with.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextvars import copy_context

import httpx
from pydantic import ValidationError

from gateway.metrics import CALLS
from gateway.model_services.cancellation import Cancelled, current_cancellation, refuse_cancelled
from gateway.model_services.http_thread import HttpThread
from gateway.model_services.parts import image_bytes, join, parts
from gateway.model_services.waiting import current_waiting
from shared.admission import Budget
from shared.endpoints import INFO, MODELS, Description, Endpoint, Reply, Request, Services
from shared.logging import REQUEST_ID_HEADER, mask, request_id
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
from shared.schemas.base import MAX_MESSAGE_BYTES
from shared.schemas.evaluation import ModelsReply
from shared.schemas.service import ServiceInfo, ServiceName
from shared.service_requests import DEADLINE_HEADER
from shared.turns import START_TIME_HEADER, current_start_time

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
    is set, retries end. A call within `cancellable` (`gateway.model_services.cancellation`) can be ended from another
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
