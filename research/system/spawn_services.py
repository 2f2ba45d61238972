"""Start the shipped model services in separate processes, for measurements without a job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.ports import free_port
from gateway.model_services.clients import ModelServices
from shared.package import module
from shared.schemas.service import SERVICES, ServiceName

START_SECONDS = 1200.0  # how long a call waits for a service that is still loading


@contextmanager
def spawn_services(profile: str, names: Sequence[ServiceName] = SERVICES) -> Iterator[ModelServices]:
    """Clients of some services, which run with one thread each on free ports until the block ends."""
    environment = os.environ | {"CONTRAFACT_PROFILE": profile, "CONTRAFACT_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        urls: dict[ServiceName, str] = {}
        for name in names:
            port = str(free_port())
            command = [sys.executable, "-m", "uvicorn", "--factory", module(f"{name}.app:create_app"), "--port", port]
            process = subprocess.Popen([*command, "--log-level", "error"], env=environment, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            urls[name] = f"http://127.0.0.1:{port}"
        services = ModelServices(urls, wait=START_SECONDS)
        stack.callback(services.close)
        yield services
