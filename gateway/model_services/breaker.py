"""Whose fault a failed call is: the source image's, or that of a service that fails for every image.

    an image fails for the first time since the service last succeeded    counted against the image, as before
    it fails again, and others do, and none has succeeded                  not counted: the image waits (`Held`)
    three images fail and none succeeds                                    one call per pause; the others wait at once
    out of memory, while another image of its size succeeds                the image's own fault
    the service cannot do it (502, 504), but answers                       some tries free, then counted
    the model under test is quarantined                                    the image's own; nobody waits for the model

Pauses double from `pause` seconds to five minutes, with each failed try: calls under way at the same time, which a
service that dies fails at once, are one try. An image that waits shows the reason. After `longest` seconds
without a success, failures count again, so that no job runs for ever. The state is one worker's own and in memory.
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
    GenerationFailed,
    ModelStopped,
    NotReady,
    OutOfMemory,
    Problem,
)

OPEN_AFTER = 3  # images that fail and none that succeeds: from then on one call per pause
FREE_RELEASES = 5
MAX_PAUSE_SECONDS = 300.0
MAX_DOUBLINGS = 6
MOST_IMAGES = 10_000  # per endpoint; images that failed for good are forgotten, the oldest first


class Held(NotReady):
    """The service fails for every image, so this one waits for it and costs nothing."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The source image that calls are made for."""

    id: str
    pixels: int


@dataclass(slots=True)
class _Image:
    """An image that failed: how often, and whether another of its size has succeeded since its first failure."""

    pixels: int
    failures: int = 0
    fits: bool = False


@dataclass(slots=True)
class _Endpoint:
    """An endpoint: the images that failed, those of them that did since its last success (`troubled`), failed tries."""

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
        """`pause`: seconds of the first pause; `longest`: for how long images wait for a service without a success."""
        self._pause = pause
        self._longest = longest
        self._changing = threading.Lock()
        self._endpoints: dict[str, _Endpoint] = {}

    @contextmanager
    def call(self, name: str, subject: Subject) -> Iterator[None]:
        """Guard one call of the endpoint `name`. Raises Held without a call while the endpoint fails for every image.

        A failure of the call is raised as Held where it is not the image's, as BrokenOff where its cause is unknown,
        and else as it is.
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
                verdict = self._judged(name, subject, problem, began)
            if verdict is problem:
                raise
            raise verdict from problem
        with self._changing:
            self._succeeded(name, subject)

    def _admit(self, name: str, subject: Subject) -> None:
        with self._changing:
            endpoint = self._endpoints.get(name)
            if endpoint is None or len(endpoint.troubled) < OPEN_AFTER or self._given_up(endpoint):
                return
            now = time.monotonic()
            if now < endpoint.next_try:
                image = endpoint.images.get(subject.id)
                delay = max(endpoint.next_try - now, self._delay(image.failures if image else 1))
                raise self._held(name, endpoint, delay)
            endpoint.next_try = now + self._delay(endpoint.failures)  # this call is the one try

    def _succeeded(self, name: str, subject: Subject) -> None:
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

    def _judged(self, name: str, subject: Subject, problem: Problem, began: float) -> Problem:
        endpoint = self._endpoints.setdefault(name, _Endpoint())
        if not endpoint.troubled:
            endpoint.failing_since = time.monotonic()
            endpoint.failing_from = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        again = subject.id in endpoint.troubled
        endpoint.troubled.add(subject.id)
        if began >= endpoint.last_failure:
            endpoint.failures += 1
            endpoint.last_failure = time.monotonic()
        endpoint.reason = problem.detail
        endpoint.next_try = time.monotonic() + self._delay(endpoint.failures - OPEN_AFTER + 1)
        image = self._image(endpoint, subject)
        image.failures += 1
        delay = self._delay(image.failures)
        if again and len(endpoint.troubled) > 1 and not self._given_up(endpoint):
            return self._held(name, endpoint, delay)
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

    def _held(self, name: str, endpoint: _Endpoint, delay: float) -> Held:
        reason = (
            f"{name} has failed for every image since {endpoint.failing_from}, so this one waits: {endpoint.reason}"
        )
        return Held(reason, retry_after=delay)

    def _given_up(self, endpoint: _Endpoint) -> bool:
        return time.monotonic() - endpoint.failing_since > self._longest

    def _delay(self, failures: int) -> float:
        doublings = min(max(failures - 1, 0), MAX_DOUBLINGS)
        return min(MAX_PAUSE_SECONDS, self._pause * 2.0**doublings)


def _may_be_the_service(problem: Problem) -> bool:
    if isinstance(problem, GenerationFailed):
        return False
    return isinstance(problem, OutOfMemory | DeviceFailed | DependencyFailed | DeadlineExceeded)
