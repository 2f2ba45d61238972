"""Throughput of a whole job against 1 / Σ (CPU seconds per image of each stage, measured alone).

    python -m benchmarks.job [--images 24] [--json FILE]

One thread per model, and the embedded system lets one model compute at a time: so the sum of the stages' CPU seconds
is the least time that an image can take, and the ratio says how much of it the gateway, the worker and the database
leave. The stages' cost is measured first, by asking each service alone what the job will ask it.
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
from pathlib import Path

import httpx

from benchmarks.measure import free_port, running
from benchmarks.requests import TASK, NotingServices, sources, work_on
from benchmarks.services import asker, by_endpoint
from gateway.methods.counterfactual import SourceImage
from gateway.model_services import SERVICES

THREADS = 1
IN_FLIGHT = 8


def main() -> None:
    """Measure the stages alone, then the job, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=24, help="tinyworld pictures in the job")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    images = sources(arguments.images)
    stages = stage_seconds(images)
    for path, seconds in stages.items():
        print(f"{path:<18} {seconds:.3f} CPU s per image", flush=True)
    bound = 1 / sum(stages.values())
    measured = job_throughput(images)
    print(f"job {measured:.3f} images/s; 1 / Σ {bound:.3f} images/s; ratio {measured / bound:.2f}")
    if arguments.json:
        figures = {"images": len(images), "stages": stages, "bound": bound, "job": measured, "ratio": measured / bound}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def stage_seconds(images: list[SourceImage]) -> dict[str, float]:
    """CPU seconds per source image of each endpoint, asked alone with as much in flight as a worker has."""
    with ExitStack() as stack:
        services = {name: stack.enter_context(running(name, THREADS)) for name in SERVICES}
        client = NotingServices({name: service.url for name, service in services.items()})
        for image in images:
            work_on(client, image)
    seconds: dict[str, float] = defaultdict(float)
    for path, requests in by_endpoint(client).items():
        endpoint = requests[0][0]
        with running(endpoint.service, THREADS) as service:
            ask = asker(service, endpoint)
            ask(requests[0][1])
            seconds[path] = service.cost(ask, [request for _, request in requests], IN_FLIGHT).cpu / len(images)
    return dict(seconds)


def job_throughput(images: list[SourceImage]) -> float:
    """Source images per second of a job over all `images`, from its request to its report."""
    files = [("images", (f"{image.id}.png", image.image.png, "image/png")) for image in images]
    labels = "file,label\n" + "".join(f"{image.id}.png,{image.ground_truth}\n" for image in images)
    with embedded() as url, httpx.Client(base_url=url, timeout=60) as client:
        started = time.perf_counter()
        posted = client.post(
            "/jobs", files=[*files, ("manifest", ("labels.csv", labels, "text/csv"))], data={"task": TASK.text}
        )
        posted.raise_for_status()
        location = posted.headers["Location"]
        while (state := client.get(location).raise_for_status().json()["state"]) == "running":
            time.sleep(0.2)
        if state != "done":
            raise RuntimeError(f"the job ended as {state}")
        return len(images) / (time.perf_counter() - started)


@contextmanager
def embedded() -> Iterator[str]:
    """The whole system in one process on an empty directory, its services ready."""
    port = free_port()
    environment = os.environ | {"CONTRAFACT_THREADS": str(THREADS), "OMP_NUM_THREADS": str(THREADS)}
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "embedded", "--directory", directory, "--port", str(port)]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                url = f"http://127.0.0.1:{port}"
                _wait_until_ready(url)
                yield url
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
