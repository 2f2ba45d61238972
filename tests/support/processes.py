"""Processes on loopback ports that tests kill at any moment and start again."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.support.work_site import wait_for

START_SECONDS = 300.0  # seconds where there is nothing else to do; the model services load weights
UVICORN = (sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--log-level", "warning", "--factory")
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_HTTP = httpx.Client(timeout=60, trust_env=False, headers={"Connection": "close"})


@dataclass
class Program:
    """A process that may be killed at any moment and started again; `ready` says whether it does its work."""

    name: str
    command: Sequence[str]
    ready: Callable[[], bool]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; it may take a while until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdin=subprocess.PIPE,  # Swift ends with it
                stdout=log,
                stderr=log,
                user=self.user,
                preexec_fn=_end_with_parent,
            )

    def kill(self) -> None:
        """SIGKILL for the process and its children: no handler, no cleanup, no last words."""
        if self.process is None:
            return
        victims = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        for victim in victims:
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.communicate()
        psutil.wait_procs(victims[1:], timeout=30)
        self.process = None

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM, as an orchestrator says it; the exit status."""
        assert self.process is not None
        process, self.process = self.process, None
        process.terminate()
        process.communicate(timeout=seconds)
        return int(process.returncode)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Wait until it is ready, starting it again when it ends by itself: what an orchestrator does."""

        def up() -> bool:
            if not self.alive:
                self.kill_rest()
                self.start()
            return self.ready()

        wait_for(up, seconds, explain=lambda: f"{self.name} did not start:\n{self.log.read_text()[-3000:]}")

    def kill_rest(self) -> None:
        """Forget a process that has ended."""
        if self.process is not None:
            self.process.communicate()
            self.process = None


def free_port() -> int:
    """A free port, outside the range that the kernel gives to clients: so it stays free over a restart."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def http_ready(url: str) -> Callable[[], bool]:
    """Whether a GET of `url` is answered with 200, as a `Program` asks it."""

    def ready() -> bool:
        try:
            return _HTTP.get(url).status_code == 200
        except httpx.TransportError:
            return False

    return ready


def listens(port: int) -> bool:
    """Whether something accepts connections on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end_with_parent() -> None:
    """Runs in the new process: end when the test run does, however that ends."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
