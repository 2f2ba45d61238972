"""A cancelled call ends at once, and the service drops it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import httpx
import pytest

from embedded.serving import ListeningPort
from gateway.model_services.clients import Cancellation, Cancelled, ModelServices, cancellable
from tests.support.slow_service import SQUARES, Count, SlowSquares, create_app
from tests.support.threads import background
from tests.support.work_site import wait_for


def metric(address: str, name: str) -> float:
    lines = httpx.get(f"{address}/metrics", timeout=60).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_a_cancelled_call_ends_at_once_and_leaves_the_line_of_its_service(monkeypatch: pytest.MonkeyPatch) -> None:
    squaring, go_on = threading.Event(), threading.Event()

    def square(model: SlowSquares, key: str, items: Sequence[int]) -> list[int]:
        squaring.set()
        go_on.wait(300)
        return [item * item for item in items]

    monkeypatch.setattr(SlowSquares, "_run", square)
    port = ListeningPort()
    port.serve(create_app())
    services = ModelServices({"evaluator_service": port.base_url}, wait=300)
    cancellation, ended = Cancellation(), []

    def call(number: int) -> None:
        with cancellable(cancellation):
            try:
                services.call(SQUARES, Count(number=number))
            except Cancelled:
                ended.append(number)

    try:
        with background(partial(call, 0), partial(call, 1)):
            wait_for(lambda: squaring.is_set() and metric(port.base_url, "contrafact_waiting{") == 1)
            cancellation.cancel()
        assert sorted(ended) == [0, 1]
        wait_for(lambda: metric(port.base_url, "contrafact_waiting{") == 0)
        with cancellable(cancellation), pytest.raises(Cancelled):
            services.call(SQUARES, Count(number=3))
        go_on.set()
        assert services.call(SQUARES, Count(number=3)).square == 9
    finally:
        go_on.set()
        services.close()
        port.close()
