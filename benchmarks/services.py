"""Measure each model service alone: images per second with one request at a time and at its best batch, and CPU time.

    python -m benchmarks.services [--images 16] [--threads 0] [--json FILE]

The requests are DILLEMA's for tinyworld pictures (split `demo`). "One at a time" sends a request when the previous one
is answered. "Best batch" is the fastest of 4, 8 and 16 requests in flight. A rendering request has several renderings
(a source's counterfactuals and null arms), so its rate is also given per rendering.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measure import Cost, RunningService, running
from benchmarks.requests import RecordingServices, sources, work_on
from shared.schemas.base import Contract
from shared.schemas.diffusion import RenderRequest
from shared.schemas.service import SERVICES
from shared.service.endpoints import Endpoint

AT_ONCE = (4, 8, 16)


def main() -> None:
    """Measure all services and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=16, help="tinyworld pictures to ask about")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of a model; 0 leaves it to torch")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        services = {name: stack.enter_context(running(name, arguments.threads)) for name in SERVICES}
        client = RecordingServices({name: service.url for name, service in services.items()})
        for image in sources(arguments.images):
            work_on(client, image)
    rows = []
    for path, requests in by_endpoint(client).items():
        endpoint = requests[0][0]
        with running(endpoint.service, arguments.threads) as service:
            rows.append(measure(service, path, [request for _, request in requests], asker(service, endpoint)))
        print(as_line(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"images": arguments.images, "rows": rows}, indent=2) + "\n")


def by_endpoint(client: RecordingServices) -> dict[str, list[tuple[Endpoint[Any, Any], Contract]]]:
    """The recorded requests, grouped by path in order of first use."""
    groups: dict[str, list[tuple[Endpoint[Any, Any], Contract]]] = {}
    for endpoint, request in client.calls:
        groups.setdefault(endpoint.path, []).append((endpoint, request))
    return groups


def asker(service: RunningService, endpoint: Endpoint[Any, Any]) -> Callable[[Contract], object]:
    """A function that sends one request to a running service."""
    client = RecordingServices({service.name: service.url})
    return lambda request: client.call(endpoint, request)


def measure(
    service: RunningService, path: str, requests: Sequence[Contract], ask: Callable[[Contract], object]
) -> dict[str, Any]:
    """Rates of one endpoint. The first request is sent once before, so that the measurement has no cold start."""
    ask(requests[0])
    alone = service.cost(ask, requests, 1)
    best, at_once = max(((service.cost(ask, requests, n), n) for n in AT_ONCE), key=lambda pair: _rate(pair[0]))
    images_per_request = sum(len(r.renderings) if isinstance(r, RenderRequest) else 1 for r in requests) / len(requests)
    return {
        "endpoint": path,
        "requests": len(requests),
        "items_per_request": images_per_request,
        "alone_per_second": _rate(alone),
        "best_per_second": _rate(best),
        "ratio": _rate(best) / _rate(alone),
        "in_flight": at_once,
        "mean_batch": best.batch,
        "cpu_seconds_per_request": best.cpu / best.requests,
    }


def as_line(row: dict[str, Any]) -> str:
    """One row of the table, for people."""
    return (
        f"{row['endpoint']:<18} {row['requests']:>4} requests × {row['items_per_request']:.1f} | "
        f"alone {row['alone_per_second']:7.2f}/s | best {row['best_per_second']:7.2f}/s "
        f"(× {row['ratio']:.2f}, {row['in_flight']} in flight, mean batch {row['mean_batch']:.1f}) | "
        f"{row['cpu_seconds_per_request']:.3f} CPU s each"
    )


def _rate(cost: Cost) -> float:
    return cost.requests / cost.wall


if __name__ == "__main__":
    main()
