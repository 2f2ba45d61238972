"""The gateway closes idle connections before the model services do."""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI

from gateway.model_services.clients import KEEP_IDLE_SECONDS, ModelServices


def test_the_worker_closes_idle_connections_before_uvicorn_does() -> None:
    services = ModelServices({})
    assert services._http.client._transport._pool._keepalive_expiry == KEEP_IDLE_SECONDS  # type: ignore[attr-defined]
    services.close()
    assert uvicorn.Config(FastAPI()).timeout_keep_alive > KEEP_IDLE_SECONDS
