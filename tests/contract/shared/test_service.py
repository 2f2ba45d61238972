"""Every model service over real sockets: readiness, deadlines, disconnects, overload, limits, drain."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import httpx
import pytest

from shared.profiles.weights import Section, Weights
from shared.schemas.base import MAX_MESSAGE_BYTES
from shared.schemas.service import WeightsInfo
from shared.service.load_progress import WARM_UP, expect, reading
from shared.service.model_service import MakeBatcher, ModelService
from shared.service.settings import LARGEST_SUBMISSION, ServiceSettings
from tests.support.http_jobs import queue_length
from tests.support.language_servers import listening
from tests.support.slow_service import square_service
from tests.support.threads import background
from tests.support.work_site import wait_for

PATIENCE = 120.0  # seconds, which only a hang takes
HTTP = httpx.Client(timeout=PATIENCE, trust_env=False, headers={"Connection": "close"})


class Squares:
    """A model that squares, whose loading and running wait at gates."""

    device = "cpu"
    weights = (WeightsInfo(role="squares", id="none", revision="1", dtype="float32", licence="none"),)

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.loads = threading.Event()
        self.runs = threading.Event()
        self.entered = threading.Event()
        self.loads.set()
        self.runs.set()

    def load(self, make_batcher: MakeBatcher) -> Squares:
        assert self.loads.wait(PATIENCE)
        self.batcher = make_batcher(self.run, 1)
        return self

    def close(self) -> None:
        """Let the next batch wait at the gate."""
        self.entered.clear()
        self.runs.clear()

    def at_the_gate(self) -> None:
        """Return once a batch waits there."""
        assert self.entered.wait(PATIENCE)

    def fill_queue(self, number: int) -> None:
        """Submit the same number as often as the queue has room."""
        numbers, deadline = [number] * LARGEST_SUBMISSION, time.monotonic() + PATIENCE
        asyncio.run(self.batcher.submit_all(numbers, key="", deadline=deadline))

    def run(self, key: str, items: Sequence[int]) -> list[int]:
        self.entered.set()
        assert self.runs.wait(PATIENCE)
        self.ran += items
        return [item * item for item in items]


@pytest.fixture
def squares() -> Squares:
    return Squares()


@pytest.fixture
def url(squares: Squares) -> Iterator[str]:
    with listening(square_service(squares.load, ServiceSettings(capacity=LARGEST_SUBMISSION))) as url:
        yield url
        squares.loads.set()
        squares.runs.set()


def ready(url: str) -> None:
    wait_for(lambda: HTTP.get(f"{url}/readyz").status_code == 200)


def ask(url: str, number: int, **headers: str) -> httpx.Response:
    return HTTP.post(f"{url}/v1/squares", json={"number": number}, headers=headers)


class TwoSets(Section):
    """A section of a profile with two sets of weights."""

    first: Weights
    others: dict[str, Weights]


def test_until_it_is_ready_it_says_what_is_loaded_and_how_far_it_is(squares: Squares) -> None:
    section = TwoSets(
        first=Weights(hub="one/first", revision="1", licence="none", gigabytes=2),
        others={"second": Weights(hub="two/second", revision="1", licence="none", gigabytes=6)},
    )
    gates = [threading.Event() for _ in range(3)]

    def load(make_batcher: MakeBatcher) -> Squares:
        expect(section)
        for weights, gate in zip((section.first, section.others["second"]), gates[:2], strict=True):
            with reading(weights):
                assert gate.wait(120)
        assert gates[2].wait(120)
        return squares.load(make_batcher)

    def state() -> tuple[str, float, float]:
        body = HTTP.get(f"{url}/readyz").json()
        return body.get("loading", ""), body.get("gigabytes_loaded", 0), body.get("gigabytes_total", 0)

    def reached(expected: tuple[str, float, float]) -> bool:
        return state() == expected

    with listening(square_service(load, ServiceSettings())) as url:
        for expected, gate in zip(
            [("first (one/first)", 0, 8), ("others.second (two/second)", 2, 8), (WARM_UP, 8, 8)], gates, strict=True
        ):
            wait_for(partial(reached, expected))
            reply = HTTP.get(f"{url}/readyz")
            assert reply.status_code == 503
            assert reply.json()["seconds"] >= 0
            assert expected[0] in reply.json()["detail"]
            gate.set()
        ready(url)


def test_alive_at_once_ready_when_loaded(squares: Squares, url: str) -> None:
    ready(url)
    assert ask(url, 7).json() == {"square": 49}


class PanicException(BaseException):
    """As pyo3 names it."""


def test_a_panic_while_weights_are_loaded_is_a_failure_to_load() -> None:
    def load(make_batcher: MakeBatcher) -> Squares:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    with listening(square_service(load, ServiceSettings())) as url:
        wait_for(lambda: "failed" in HTTP.get(f"{url}/readyz").json(), PATIENCE)
        assert "PanicException" in HTTP.get(f"{url}/readyz").json()["detail"]


def test_not_ready_is_a_problem_that_says_when_to_come_back() -> None:
    squares = Squares()
    squares.loads.clear()
    service = ModelService("squares", "1", ServiceSettings(), squares.load)
    with listening(service.app) as url:
        assert HTTP.get(f"{url}/healthz").json() == {"status": "alive"}
        for path in ("/readyz", "/v1/info"):
            reply = HTTP.get(url + path)
            assert reply.status_code == 503
            assert reply.headers["retry-after"] == "2"
        squares.loads.set()
        ready(url)


def test_a_client_that_leaves_costs_nothing(squares: Squares, url: str) -> None:
    ready(url)
    squares.close()

    async def leave() -> None:
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            first = asyncio.create_task(client.post(f"{url}/v1/squares", json={"number": 1}))
            await asyncio.to_thread(squares.at_the_gate)
            second = asyncio.create_task(client.post(f"{url}/v1/squares", json={"number": 2}))
            await asyncio.to_thread(wait_for, lambda: queue_length(url) == 1)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            await asyncio.to_thread(wait_for, lambda: queue_length(url) == 0)
            squares.runs.set()
            assert (await first).json() == {"square": 1}

    asyncio.run(leave())
    assert ask(url, 3).json() == {"square": 9}
    assert squares.ran == [1, 3]
    assert 'outcome="cancelled",service="squares"} 1.0' in HTTP.get(f"{url}/metrics").text


def test_a_deadline_that_passes_is_504_and_costs_nothing(squares: Squares, url: str) -> None:
    ready(url)
    squares.close()
    with background(partial(ask, url, 1), release=squares.runs.set):
        squares.at_the_gate()
        reply = ask(url, 2, **{"X-Deadline-Seconds": "0.1"})
        assert (reply.status_code, reply.json()["type"]) == (504, "urn:contrafact:problem:deadline-exceeded")
    assert ask(url, 3).status_code == 200
    assert squares.ran == [1, 3]


def test_a_full_line_is_429_with_retry_after(squares: Squares, url: str) -> None:
    ready(url)
    squares.close()
    with background(partial(ask, url, 1), release=squares.runs.set):
        squares.at_the_gate()
        with background(partial(squares.fill_queue, 2), release=squares.runs.set):
            wait_for(lambda: queue_length(url) == LARGEST_SUBMISSION)
            reply = ask(url, 3)
            assert reply.status_code == 429
            assert int(reply.headers["retry-after"]) >= 1
    assert squares.ran == [1, *[2] * LARGEST_SUBMISSION]


def test_bodies_are_bounded_while_they_stream(url: str) -> None:
    ready(url)
    chunks = [0]

    async def endless() -> AsyncIterator[bytes]:
        while True:
            chunks[0] += 1
            yield b" " * 1_000_000

    async def main() -> int:
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            return (await client.post(f"{url}/v1/squares", content=endless())).status_code

    try:
        status = asyncio.run(main())
    except httpx.TransportError:  # the server answers and closes while we still write
        status = 413
    assert status == 413
    assert chunks[0] < 2 * MAX_MESSAGE_BYTES / 1_000_000
    declared = HTTP.post(f"{url}/v1/squares", content=b"x" * (MAX_MESSAGE_BYTES + 1))
    assert declared.status_code == 413


@pytest.mark.slow
def test_a_stopped_service_lets_go_of_its_model() -> None:
    """Libraries hold apps for as long as the process lives: each `contrafact.test` kept the models of all before it."""
    models: list[weakref.ref[Squares]] = []

    def load(make_batcher: MakeBatcher) -> Squares:
        model = Squares()
        models.append(weakref.ref(model))
        return model.load(make_batcher)

    app = square_service(load, ServiceSettings())
    with listening(app) as url:
        ready(url)
        assert ask(url, 3).json()["square"] == 9
    gc.collect()
    assert [model() for model in models] == [None]
    assert app.routes  # it is still there


def test_stopping_finishes_what_waits(squares: Squares) -> None:
    app = square_service(squares.load, ServiceSettings())
    replies: list[httpx.Response] = []

    with ExitStack() as calls, listening(app) as url:

        def collect(number: int) -> None:
            replies.append(ask(url, number))

        ready(url)
        squares.close()
        calls.enter_context(background(partial(collect, 1), partial(collect, 2), release=squares.runs.set))
        squares.at_the_gate()
        wait_for(lambda: queue_length(url) == 1)
        threading.Timer(0.3, squares.runs.set).start()
    assert sorted(reply.json()["square"] for reply in replies) == [1, 4]
