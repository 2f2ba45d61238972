"""Circuit breaker: decides whether a failed call is the source image's fault, or the service fails for every image.

    an image fails for the first time since the service last succeeded    counted against the image
    the image and others fail again, and no call has succeeded             not counted: it waits (`ServiceFailing`)
    three images fail and no call succeeds                                 one call per pause; the other images wait
    out of memory, but another image of this size succeeds                 counted against the image
    the service answers with an error (502, 504)                           a few failures are free, then counted
    the model under test is quarantined                                    counted against the image; no image waits

Pauses start at `pause` seconds and double with each failed try, up to five minutes. Calls that are in flight together
count as one try, because a dying service fails them all at once. A waiting image shows the reason. After `longest`
seconds without a success, failures count again, so that every job ends. Each worker keeps its own state in memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gateway.model_services.clients import BrokenOff
from shared.problems import (
    DeadlineExceeded,
    DependencyFailed,
    DeviceFailed,
    ModelStopped,
    NotReady,
    OutOfMemory,
    Problem,
    UnusableReply,
)

OPEN_AFTER = 3  # images that fail without a success in between; from then on there is one call per pause
FREE_RELEASES = 5
MAX_PAUSE_SECONDS = 300.0
MAX_DOUBLINGS = 6
MOST_IMAGES = 10_000  # per endpoint; the oldest entries are dropped, since their images have usually failed for good


class ServiceFailing(NotReady):
    """The service fails for every image, so this image waits, and the failure does not count against it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The source image that calls are made for."""

    id: str
    pixels: int


@dataclass(slots=True)
class _Image:
    """A failed image: its failures, and whether an image of at least its size has succeeded since (`fits`)."""

    pixels: int
    failures: int = 0
    fits: bool = False


@dataclass(slots=True)
class _Endpoint:
    """An endpoint: its failed images, the ids that failed since its last success (`troubled`), and failed tries."""

    images: dict[str, _Image] = field(default_factory=dict)
    troubled: set[str] = field(default_factory=set)
    failures: int = 0
    last_failure: float = 0.0
    failing_since: float = 0.0
    failing_from: str = ""
    reason: str = ""
    next_try: float = 0.0


class Breaker:
    """The failures and successes of the services, as one worker sees them. Thread-safe."""

    def __init__(self, pause: float, longest: float) -> None:
        """`pause`: seconds of the first pause. `longest`: seconds that images wait for a service without a success."""
        self._pause = pause
        self._longest = longest
        self._changing = threading.Lock()
        self._endpoints: dict[str, _Endpoint] = {}

    @contextmanager
    def call(self, name: str, subject: Subject) -> Iterator[None]:
        """Guard one call of the endpoint `name`. Raises ServiceFailing without a call while it fails for every image.

        A failed call raises ServiceFailing if the service fails for every image, BrokenOff if the cause is unknown, and
        otherwise its own problem.
        """
        self._admit(name, subject)
        began = time.monotonic()
        try:
            yield
        except ModelStopped:  # quarantined: no call for this model gets any further, and none has to wait
            with self._changing:
                self._endpoints.pop(name, None)
            raise
        except Problem as problem:
            if not _may_be_the_service(problem):
                raise
            with self._changing:
                raised = self._problem_to_raise(name, subject, problem, began)
            if raised is problem:
                raise
            raise raised from problem
        with self._changing:
            self._record_success(name, subject)

    def _admit(self, name: str, subject: Subject) -> None:
        with self._changing:
            endpoint = self._endpoints.get(name)
            if endpoint is None or len(endpoint.troubled) < OPEN_AFTER or self._is_given_up(endpoint):
                return
            now = time.monotonic()
            if now < endpoint.next_try:
                image = endpoint.images.get(subject.id)
                delay = max(endpoint.next_try - now, self._delay(image.failures if image else 1))
                raise self._service_failing(name, endpoint, delay)
            endpoint.next_try = now + self._delay(endpoint.failures)  # this call is the only one of this pause

    def _record_success(self, name: str, subject: Subject) -> None:
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            return
        endpoint.images.pop(subject.id, None)
        for image in endpoint.images.values():
            image.fits = image.fits or image.pixels <= subject.pixels
        endpoint.troubled.clear()
        endpoint.failures = 0
        if not endpoint.images:
            del self._endpoints[name]

    def _problem_to_raise(self, name: str, subject: Subject, problem: Problem, began: float) -> Problem:
        endpoint = self._endpoints.setdefault(name, _Endpoint())
        if not endpoint.troubled:
            endpoint.failing_since = time.monotonic()
            endpoint.failing_from = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        is_repeated = subject.id in endpoint.troubled
        endpoint.troubled.add(subject.id)
        if began >= endpoint.last_failure:
            endpoint.failures += 1
            endpoint.last_failure = time.monotonic()
        endpoint.reason = problem.detail
        endpoint.next_try = time.monotonic() + self._delay(endpoint.failures - OPEN_AFTER + 1)
        image = self._image(endpoint, subject)
        image.failures += 1
        delay = self._delay(image.failures)
        if is_repeated and len(endpoint.troubled) > 1 and not self._is_given_up(endpoint):
            return self._service_failing(name, endpoint, delay)
        if isinstance(problem, OutOfMemory):
            return problem if image.fits else BrokenOff(problem.detail)
        if isinstance(problem, BrokenOff | DeviceFailed) or image.failures > FREE_RELEASES:
            return BrokenOff(problem.detail)
        problem.retry_after = problem.retry_after or delay
        return problem

    def _image(self, endpoint: _Endpoint, subject: Subject) -> _Image:
        if subject.id not in endpoint.images and len(endpoint.images) >= MOST_IMAGES:
            del endpoint.images[next(iter(endpoint.images))]
        return endpoint.images.setdefault(subject.id, _Image(subject.pixels))

    def _service_failing(self, name: str, endpoint: _Endpoint, delay: float) -> ServiceFailing:
        reason = (
            f"{name} has failed for every image since {endpoint.failing_from}, so this one waits: {endpoint.reason}"
        )
        return ServiceFailing(reason, retry_after=delay)

    def _is_given_up(self, endpoint: _Endpoint) -> bool:
        return time.monotonic() - endpoint.failing_since > self._longest

    def _delay(self, failures: int) -> float:
        doublings = min(max(failures - 1, 0), MAX_DOUBLINGS)
        return min(MAX_PAUSE_SECONDS, self._pause * 2.0**doublings)


def _may_be_the_service(problem: Problem) -> bool:
    if isinstance(problem, UnusableReply):
        return False
    return isinstance(problem, OutOfMemory | DeviceFailed | DependencyFailed | DeadlineExceeded)
