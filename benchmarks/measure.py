"""Start model services alone and measure the cost of requests: wall time, CPU time, batch sizes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import psutil

from benchmarks.ports import free_port
from shared.schemas.service import ServiceName

Request = TypeVar("Request")


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of some requests in one service process: wall and CPU seconds, and the mean batch size."""

    requests: int
    wall: float
    cpu: float
    batch: float


class RunningService:
    """One service in a separate process, started by its documented command."""

    def __init__(self, name: ServiceName, process: psutil.Process, url: str) -> None:
        self.name = name
        self.url = url
        self._process = process

    def cost(self, ask: Callable[[Request], object], requests: Sequence[Request], at_once: int) -> Cost:
        """Send all requests, `at_once` at a time, and read the process's clocks before and after."""
        items, batches = self._batches()
        cpu, wall = self._cpu(), time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(ask, requests))
        wall, cpu = time.perf_counter() - wall, self._cpu() - cpu
        after_items, after_batches = self._batches()
        size = (after_items - items) / max(1.0, after_batches - batches)
        return Cost(len(requests), wall, cpu, size)

    def peak_memory(self) -> int:
        """Peak resident memory of the process in bytes; the current value if the system records no peak."""
        return peak_memory(self._process)

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _batches(self) -> tuple[float, float]:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}
        return values.get("contrafact_batch_size_sum", 0.0), values.get("contrafact_batch_size_count", 0.0)


def peak_memory(process: psutil.Process) -> int:
    """Peak resident memory of a process in bytes; the current value if the system records no peak."""
    status = Path(f"/proc/{process.pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
    return int(process.memory_info().rss) if peak is None else peak


@contextmanager
def running(name: ServiceName, threads: int, profile: str = "tiny") -> Iterator[RunningService]:
    """Start a service with a profile (a name or a file) on the CPU, wait until it is ready, and stop it at the end."""
    port = free_port()
    environment = os.environ | {
        "CONTRAFACT_PROFILE": profile,
        "CONTRAFACT_DEVICE": "cpu",
        "CONTRAFACT_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
    }
    command = [sys.executable, "-m", "uvicorn", "--factory", f"{name}.app:create_app", "--port", str(port)]
    with subprocess.Popen([*command, "--log-level", "warning"], env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process)
            yield RunningService(name, psutil.Process(process.pid), url)
        finally:
            process.terminate()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the service ended with exit code {process.returncode} before it was ready")
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{url} was not ready within two minutes")
