"""A port for the machinery around a process: `/healthz`, `/readyz`, `/metrics`, without a key. It belongs inside."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from sqlalchemy import select

from gateway.auth.middleware import no_database
from gateway.context import Parts
from gateway.database.sessions import DATABASE_AWAY, Sessions, reading
from gateway.metrics import exposition
from shared.problems import MEDIA_TYPE, NotReady

Check = Callable[[], None]
"""Returns where all is well, and raises NotReady otherwise."""

logger = logging.getLogger("contrafact.operations")


def database_answers(sessions: Sessions) -> None:
    """Raises NotReady while the database does not answer."""
    try:
        with reading(sessions) as session:
            session.execute(select(1))
    except DATABASE_AWAY as error:
        raise no_database() from error


def refuse_unready(parts: Parts) -> None:
    """Raises NotReady while a gateway should get no requests."""
    if parts.stopping.is_set():
        raise NotReady("this gateway is stopping; ask another one")
    if parts.broker_fault:
        raise NotReady(parts.broker_fault)
    database_answers(parts.sessions)


@contextmanager
def operations_port(port: int, alive: Check, ready: Check, registry: CollectorRegistry) -> Iterator[int]:
    """Answer on all addresses until the block ends; yields the port (0: a free one). Raises OSError if it is taken."""
    checks = {"/healthz": ("alive", alive), "/readyz": ("ready", ready)}

    class Answers(BaseHTTPRequestHandler):
        """The three paths; everything else is 404."""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, exposition(registry))
            elif path in checks:
                self._answer(*_checked(*checks[path]))
            else:
                self._answer(404, "text/plain", b"there are /healthz, /readyz and /metrics\n")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: probes come every few seconds."""

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("", port), Answers) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, name="operations", daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _checked(word: str, check: Check) -> tuple[int, str, bytes]:
    said: Mapping[str, object] = {"status": word}
    try:
        check()
    except NotReady as problem:
        return problem.status, MEDIA_TYPE, json.dumps(problem.body()).encode()
    return 200, "application/json", json.dumps(said).encode()
