"""Compare the throughput of a whole job with the sum of its stages' CPU seconds, each measured alone.

    python -m benchmarks.job [--images 24] [--json FILE]

Each model has one thread, and the embedded system computes one batch at a time. The sum of the stages' CPU seconds is
therefore the least time per image, and the ratio shows the overhead of gateway, worker and database. The stages are
measured first: each service alone gets the requests of the job in a separate process, which also gives its peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.measure import peak_memory, running
from benchmarks.ports import free_port
from benchmarks.requests import TASK, RecordingServices, sources, work_on
from benchmarks.services import asker, by_endpoint
from gateway.methods.counterfactual import MethodImage
from shared.schemas.service import SERVICES

THREADS = 1
IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class JobCost:
    """CPU seconds per source image of each stage alone, images per second of a job; peak bytes of each process.

    `embedded` in `memory` is the process that holds the whole system.
    """

    images: int
    stages: dict[str, float]
    throughput: float
    memory: dict[str, int]

    @property
    def bound(self) -> float:
        """Images per second if only the stages took time."""
        return 1 / sum(self.stages.values())

    def lines(self) -> list[str]:
        """For people."""
        return [
            *(f"{path:<18} {seconds:.3f} CPU s per image" for path, seconds in self.stages.items()),
            f"job {self.throughput:.3f} images/s; 1 / Σ {self.bound:.3f} images/s; "
            f"ratio {self.throughput / self.bound:.2f}",
            *(f"{name:<18} {peak / 2**20:.0f} MiB at its peak" for name, peak in self.memory.items()),
        ]

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "bound": self.bound, "ratio": self.throughput / self.bound}


def main() -> None:
    """Measure the stages alone, then the job, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=24, help="tinyworld pictures in the job")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    cost = job_cost(arguments.images)
    print(*cost.lines(), sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(cost.figures(), indent=2) + "\n")


def job_cost(count: int) -> JobCost:
    """Measure the stages of `count` images alone, and a job of them."""
    images = sources(count)
    stages, memory = stage_seconds(images)
    throughput, memory["embedded"] = job_throughput(images)
    return JobCost(count, stages, throughput, memory)


def stage_seconds(images: list[MethodImage]) -> tuple[dict[str, float], dict[str, int]]:
    """CPU seconds per source image of each endpoint, and the peak memory of each service in bytes.

    Each service runs alone, with as many requests in flight as a worker has.
    """
    with ExitStack() as stack:
        services = {name: stack.enter_context(running(name, THREADS)) for name in SERVICES}
        client = RecordingServices({name: service.url for name, service in services.items()})
        for image in images:
            work_on(client, image)
        memory: dict[str, int] = {name: service.peak_memory() for name, service in services.items()}
    seconds: dict[str, float] = defaultdict(float)
    for path, requests in by_endpoint(client).items():
        endpoint = requests[0][0]
        with running(endpoint.service, THREADS) as service:
            ask = asker(service, endpoint)
            ask(requests[0][1])
            seconds[path] = service.cost(ask, [request for _, request in requests], IN_FLIGHT).cpu / len(images)
            memory[service.name] = max(memory[service.name], service.peak_memory())
    return dict(seconds), memory


def job_throughput(images: list[MethodImage]) -> tuple[float, int]:
    """Source images per second of a job over all `images`, from its request to its report; peak bytes of the system.

    A job of another image runs first, because the gateway answers before the model services are loaded.
    """
    source = sources(len(images) + 1)[-1]
    with start_embedded() as (url, process), httpx.Client(base_url=url, timeout=60) as client:
        _seconds_of_job(client, [source])
        return len(images) / _seconds_of_job(client, images), peak_memory(process)


def _seconds_of_job(client: httpx.Client, images: list[MethodImage]) -> float:
    files = [("images", (f"{image.id}.png", image.image.png, "image/png")) for image in images]
    labels = "file,label\n" + "".join(f"{image.id}.png,{image.ground_truth}\n" for image in images)
    started = time.perf_counter()
    posted = client.post(
        "/jobs", files=[*files, ("manifest", ("labels.csv", labels, "text/csv"))], data={"task": TASK.text}
    )
    location = posted.raise_for_status().headers["Location"]
    while (state := client.get(location).raise_for_status().json()["state"]) == "running":
        time.sleep(0.2)
    if state != "done":
        raise RuntimeError(f"the job ended as {state}")
    return time.perf_counter() - started


@contextmanager
def start_embedded() -> Iterator[tuple[str, psutil.Process]]:
    """The whole system in one process on an empty directory, its services ready."""
    port = free_port()
    environment = os.environ | {
        "CONTRAFACT_THREADS": str(THREADS),
        "CONTRAFACT_BATCHES_AT_ONCE": "1",
        "OMP_NUM_THREADS": str(THREADS),
    }
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "embedded", "--directory", directory, "--port", str(port)]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                _wait_until_ready(url)
                yield url, psutil.Process(process.pid)
            finally:
                process.terminate()


def _wait_until_ready(url: str) -> None:
    for _ in range(600):
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{url} was not ready within two minutes")


if __name__ == "__main__":
    main()
