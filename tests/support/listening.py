"""Apps on loopback ports of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from fastapi import FastAPI

from embedded.serving import ListeningPort
from gateway.model_services.clients import ModelServices
from shared.schemas.service import ServiceName


@contextmanager
def listen(app: FastAPI) -> Iterator[str]:
    """The base URL of an app, which answers while the block runs."""
    port = ListeningPort()
    try:
        port.serve(app)
        yield port.base_url
    finally:
        port.close()


@contextmanager
def listen_as(name: ServiceName, app: FastAPI) -> Iterator[ModelServices]:
    """The gateway's clients of one model service, whose app answers while the block runs."""
    with listen(app) as url, closing(ModelServices({name: url})) as services:
        yield services
