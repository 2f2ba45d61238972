"""Probes: `/healthz`, `/readyz` and `/metrics` on a separate port, without a key; keep the port inside the cluster.

The gateway, its workers and the trainer serve them. Model services answer them at their own port.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

from shared.service import problem_replies
from shared.service.endpoints import HEALTHZ, METRICS, READYZ

Check = Callable[[], None]
"""Returns if all is well; raises NotReady otherwise."""


def metrics_reply(registry: CollectorRegistry) -> Response:
    """The Prometheus text format of this registry and of the process's default one."""
    return Response(generate_latest(registry) + generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)


def probes_app(alive: Check, ready: Check, registry: CollectorRegistry) -> FastAPI:
    """`/healthz`, `/readyz` and `/metrics`. If a check raises, the reply is its problem document."""
    app = FastAPI(title="probes", openapi_url=None)

    @app.get(HEALTHZ)
    def healthz() -> dict[str, str]:
        alive()
        return {"status": "alive"}

    @app.get(READYZ)
    def readyz() -> dict[str, str]:
        ready()
        return {"status": "ready"}

    app.add_api_route(METRICS, partial(metrics_reply, registry))
    problem_replies.install(app)
    return app


@contextmanager
def operations_port(port: int, alive: Check, ready: Check, registry: CollectorRegistry) -> Iterator[int]:
    """Serve the probes on all addresses until the block ends; yields the port (0: a free one).

    Raises OSError if the port is taken.
    """
    listener = socket.create_server(("", port))
    app = probes_app(alive, ready, registry)
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = Thread(target=server.run, args=([listener],), name="operations", daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
