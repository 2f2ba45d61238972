"""Connections of the gateway's clients end: idle ones before the model services close them, the others with theirs."""

from __future__ import annotations

import gc
import itertools
import time

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from gateway.model_services.clients import KEEP_IDLE_SECONDS, HttpThread, ModelServices
from tests.support.listening import listen

TIMEOUT = httpx.Timeout(60)
PAUSE = 0.02


def test_the_worker_closes_idle_connections_before_uvicorn_does() -> None:
    services = ModelServices({})
    assert services._http.client._transport._pool._keepalive_expiry == KEEP_IDLE_SECONDS  # type: ignore[attr-defined]
    services.close()
    assert uvicorn.Config(FastAPI()).timeout_keep_alive > KEEP_IDLE_SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("cancelled", [True, False])
def test_no_connection_stays_open_when_requests_end_while_idle_ones_are_closed(cancelled: bool) -> None:
    app, took = FastAPI(), itertools.cycle((0.0, 0.005, PAUSE))
    app.get("/")(lambda: time.sleep(next(took)))
    with listen(app) as url:
        for number in range(5):
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=PAUSE)
            client = HttpThread(TIMEOUT, limits)
            for _ in range(2):
                answers = [client.send("GET", url, None, {}, TIMEOUT) for _ in range(8)]
                assert {answer.result().status_code for answer in answers} == {200}
                time.sleep(PAUSE)
            futures = [client.send("GET", url, None, {}, TIMEOUT) for _ in range(4)]
            time.sleep(number / 500)
            if cancelled:
                for future in futures:
                    future.cancel()
            client.close()
            assert all(future.done() for future in futures)
    gc.collect()  # pytest fails the test on the warning of a connection that is found open
