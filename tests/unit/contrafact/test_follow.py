"""Following a job while the gateway is away: progress keeps reporting."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from contrafact import client
from contrafact.client import Unreachable
from gateway.api.examples import EXAMPLES
from shared.schemas.jobs import JobDetail
from tests.support.threads import background

HANG_SECONDS = 60.0
RUNNING = JobDetail.model_validate(EXAMPLES[JobDetail] | {"state": "running"})
DONE = JobDetail.model_validate(EXAMPLES[JobDetail] | {"state": "done"})


class AwayForAWhile(client.Client):
    """A client whose gateway answers, is away twice, and answers again."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self._answers: Iterator[JobDetail | None] = iter([RUNNING, None, None, DONE])

    def job(self, job: str) -> JobDetail:
        answer = next(self._answers)
        if answer is None:
            raise Unreachable("does not answer")
        return answer


def test_the_last_known_progress_is_repeated_while_the_gateway_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.0)
    away = AwayForAWhile()
    states = [detail.state for detail in away.follow(RUNNING.id)]
    away.close()
    assert states == ["running", "running", "running", "done"]


def test_a_gateway_that_hangs_is_reported_while_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, go_on = threading.Event(), threading.Event()

    class HangsOnce(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if answered.is_set() and not go_on.wait(HANG_SECONDS):
                return
            body = (DONE if answered.is_set() else RUNNING).model_dump_json().encode()
            answered.set()
            with contextlib.suppress(OSError):  # the client has given this request up
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    monkeypatch.setattr(client, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(client, "STATUS_TIMEOUT", httpx.Timeout(0.3))
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), HangsOnce) as server,
        background(server.serve_forever, release=server.shutdown),
        contextlib.closing(client.Client(f"http://127.0.0.1:{server.server_port}")) as follower,
    ):
        held_up = []
        for detail in follower.follow(RUNNING.id):
            held_up.append(detail.progress.held_up)
            if len(held_up) == 2:
                go_on.set()
    assert "does not answer" in (held_up[1] or "")
    assert detail.state == "done"
