"""A worker's call frees its request and its reply without a garbage collection."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gateway.model_services.clients import ModelServices
from shared.problems import Problem
from shared.schemas.base import Contract
from shared.service.endpoints import Endpoint
from tests.support.threads import background
from tests.support.work_site import wait_for

LARGE = 2_000_000


class Text(Contract):
    """A request or a reply."""

    text: str


class Answer(BaseHTTPRequestHandler):
    """Answers a request with its own body, by the status that its path names."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(int(self.path.rsplit("/", 1)[1]))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def services() -> Iterator[ModelServices]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    with background(server.serve_forever, release=server.shutdown):
        client = ModelServices({"caption_service": f"http://127.0.0.1:{server.server_port}"}, wait=0)
        yield client
        client.close()
    server.server_close()


@contextmanager
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def call(services: ModelServices, status: int) -> None:
    endpoint = Endpoint("caption_service", f"/{status}", Text, Text, "captioning")
    try:
        assert len(services.call(endpoint, Text(text="x" * LARGE)).text) == LARGE
    except Problem:
        assert status != 200


@pytest.mark.slow
@pytest.mark.parametrize("status", [200, 400, 500, 503])
def test_a_call_leaves_nothing_that_only_a_garbage_collection_frees(services: ModelServices, status: int) -> None:
    call(services, status)  # imports, and the connection
    with no_collection():
        for _ in range(3):
            call(services, status)
        wait_for(lambda: tracemalloc.get_traced_memory()[0] < LARGE / 2)  # the thread of HTTP may hold the last
