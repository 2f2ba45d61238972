"""Upload progress in bytes: a bar on a terminal, lines elsewhere, also while the connection stalls."""

from __future__ import annotations

import http.client
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from contrafact import progress_display
from contrafact.client import Client
from contrafact.progress_display import show_upload
from shared.problems import DependencyFailed
from shared.schemas.jobs import JobSpec
from shared.schemas.models import ModelSpec
from tests.support.terminal import Terminal
from tests.support.threads import background
from tests.support.work_site import wait_for

SIZE = 3_000_000
HANG_SECONDS = 120.0


class SlowGateway:
    """Reads a request when told to, and hangs up without a reply."""

    def __init__(self, listener: socket.socket) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._may_read = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(listener,), daemon=True)
        self._thread.start()

    def read_on(self) -> None:
        self._may_read.set()

    def join(self) -> None:
        self._thread.join(HANG_SECONDS)

    def _serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as request:
            self._may_read.wait(HANG_SECONDS)
            if request.readline():
                headers = http.client.parse_headers(request)
                request.read(int(headers.get("Content-Length", 0)))


@contextmanager
def slow_gateway() -> Iterator[SlowGateway]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        gateway = SlowGateway(listener)
        try:
            yield gateway
        finally:
            gateway.read_on()
            gateway.join()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "set.zip"
    path.write_bytes(bytes(SIZE))
    return path


def test_a_client_reports_every_byte_of_an_archive_and_of_a_model(archive: Path) -> None:
    spec = JobSpec(task_description="classify the vehicle")
    half = archive.with_name("model.onnx")
    half.write_bytes(bytes(SIZE // 2))

    def plan(client: Client, positions: list[int]) -> None:
        client.plan_from_archive(spec, archive, None, positions.append)

    def create(client: Client, positions: list[int]) -> None:
        client.create_from_archive(spec, archive, None, None, positions.append)

    def add(client: Client, positions: list[int]) -> None:
        client.add_model(ModelSpec(name="mine"), [half, archive], positions.append)

    for send, total in ((plan, SIZE), (create, SIZE), (add, SIZE + SIZE // 2)):
        positions: list[int] = []
        with slow_gateway() as gateway:
            gateway.read_on()
            client = Client(gateway.url)
            with pytest.raises(DependencyFailed):  # it hangs up without a reply
                send(client, positions)
            client.close()
        assert positions == sorted(positions)
        assert len(positions) > 10
        assert positions[-1] == total


def test_lines_come_while_the_connection_stalls(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_display, "SHORTEST_GAP_SECONDS", 0.05)
    monkeypatch.setattr(progress_display, "LONGEST_SILENCE_SECONDS", 0.1)
    output = io.StringIO()
    console = Console(file=output, width=200)

    def send(url: str) -> None:
        client = Client(url)
        with pytest.raises(DependencyFailed), show_upload(console, archive.name, SIZE) as report:
            client.create_from_archive(JobSpec(task_description="classify"), archive, None, None, report)
        client.close()

    with slow_gateway() as gateway, background(partial(send, gateway.url), release=gateway.read_on):
        wait_for(lambda: output.getvalue().count("\n") >= 5)  # nothing is read meanwhile
        stalled = [line[10:] for line in output.getvalue().splitlines()]
    assert all(line.startswith("uploading set.zip  ") and " of 3.0 MB done" in line for line in stalled)


def test_an_upload_is_counted_in_bytes() -> None:
    output = io.StringIO()
    with show_upload(Console(file=output, width=200), "set [a].zip", SIZE) as report:
        for position in (65_536, 1_500_000, SIZE):
            report(position)
    first, last = (line[10:] for line in output.getvalue().splitlines())
    assert first.startswith("uploading set [a].zip  0 bytes of 3.0 MB")
    assert last.startswith("uploaded set [a].zip  3.0 MB of 3.0 MB")


def test_a_terminal_has_a_bar_with_bytes() -> None:
    output = Terminal()
    console = Console(file=output, width=100, force_terminal=True, _environ={"TERM": "xterm"})
    with show_upload(console, "set [/a].zip", SIZE) as report:
        report(1_500_000)
    assert "3.0/3.0 MB" in output.getvalue()
    assert "uploaded set [/a].zip" in output.getvalue()
