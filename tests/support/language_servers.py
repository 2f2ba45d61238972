"""A language server of the tests' own, listening on a port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tests.support.threads import background
from tests.support.work_site import wait_for


@contextmanager
def listening(app: FastAPI, certificate: Path | None = None) -> Iterator[str]:
    """The URL of `app` under a real uvicorn on a free port; under TLS with a file of certificate and key."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", ssl_certfile=certificate))

    def stop() -> None:
        server.should_exit = True

    with background(server.run, release=stop):
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{port}" if certificate is None else f"https://localhost:{port}"
