"""Servers and jobs over HTTP, waited for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import httpx

from tests.support.work_site import wait_for


def finished(client: httpx.Client, path: str, seconds: float = 1_200.0) -> dict[str, Any]:
    """The job, run or repair at `path`, once its state is no longer `running`."""
    wait_for(lambda: client.get(path).json()["state"] != "running", seconds)
    view: dict[str, Any] = client.get(path).json()
    return view


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 600.0) -> None:
    """Return once `url` answers 200; fails with the end of the log when the process ends."""

    def ready() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            return httpx.get(url, timeout=60, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    wait_for(ready, seconds, beat=0.1, explain=lambda: log.read_text()[-3000:])


def queue_length(url: str) -> float:
    """How many items wait in a model service, by its metrics."""
    lines = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text.splitlines()
    return float(next(line for line in lines if line.startswith("contrafact_waiting{")).split()[-1])
