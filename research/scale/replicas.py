"""Compare a job's throughput with the capacity of 1 to 32 replicas of a diffusion service that only waits.

    python -m research.scale.replicas --directory runs/replicas [--replicas 1 2 4 8 16 32] [--json FILE]

A batch is the work on one source image (five edits and a null arm) and takes so long that all replicas together do at
most `--rate` images a second: the machine is to stay idle, and what is measured is whether the pipeline feeds the
replicas. The other services wait too, a tenth of a second a batch. Two figures a point: the rate while the job is in
full swing (every replica has run two batches, images are left for all), and that of the whole job, from the request to
the report. Both are shares of replicas / seconds a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.database.tables import Job
from research.scale.__main__ import intake, stored_rows
from research.scale.measuring import images_done
from research.scale.site import Pace, Site, absolute, running
from research.scale.waiting_services import Balance, Batches
from shared.schemas.service import ServiceName

IMAGES_PER_BATCH = 6  # five shifts and their null arm: one source image
OTHER_SERVICES = Pace(seconds=0.1)
LEAST_SECONDS = 2.0


@dataclass(frozen=True)
class Point:
    """What was measured with so many replicas; rates are source images per second, shares are of `peak`."""

    replicas: int
    seconds_per_batch: float
    in_flight: int
    images: int
    batches_in_full_swing: int
    peak: float
    full_swing: float
    whole_job: float
    share_full_swing: float
    share_whole_job: float
    images_per_batch: float
    cpu_share: float
    cpu_ms_per_image: dict[str, float]


@dataclass(frozen=True)
class _Sample:
    at: float
    done: int
    batches: Batches
    cpu: dict[str, float]


def main() -> None:
    """Measure every point that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rate", type=float, default=2.0, help="images per second that all replicas can do at most")
    parser.add_argument("--batches", type=int, default=200, help="images of a point's job at least")
    parser.add_argument("--per-replica", type=int, default=15, help="images per replica at least")
    parser.add_argument("--balance", choices=("least busy", "connection"), default="least busy")
    parser.add_argument("--directory", type=absolute, required=True)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    points: list[dict[str, Any]] = []
    for replicas in arguments.replicas:
        in_flight = 2 * replicas + 4
        images = max(arguments.batches, arguments.per_replica * replicas) + 2 * in_flight
        wait = max(LEAST_SECONDS, replicas / arguments.rate)
        directory = arguments.directory / f"{replicas}-{arguments.balance.replace(' ', '-')}"
        points.append(asdict(measure(directory, replicas, wait, in_flight, images, arguments.balance)))
        print(json.dumps(points[-1]), flush=True)
        if arguments.json:
            figures = {"balance": arguments.balance, "cores": os.cpu_count(), "points": points}
            arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def _samples(site: Site, images: int) -> list[_Sample]:
    """A job's samples, one a second from its creation to its end."""
    intake(site, images)
    job_id = str(stored_rows(site)["job"])
    samples = [_sample(site, job_id)]
    while not _over(site, job_id):
        time.sleep(1.0)
        samples.append(_sample(site, job_id))
    return samples


def measure(directory: Path, replicas: int, wait: float, in_flight: int, images: int, balance: Balance) -> Point:
    """One job over `replicas` that take `wait` seconds a batch."""
    diffusion = Pace(seconds=wait, max_batch=IMAGES_PER_BATCH, replicas=replicas, balance=balance)
    paces: dict[ServiceName, Pace] = {
        "caption_service": OTHER_SERVICES,
        "evaluator_service": OTHER_SERVICES,
        "diffusion_service": diffusion,
    }
    with running(directory, paces, workers=1, in_flight=in_flight) as site:
        began = time.monotonic()
        samples = _samples(site, images)
        ended = time.monotonic()
    swing = [s for s in samples if min(s.batches.batches) >= 2 and s.done < images - in_flight - replicas]
    first, last = swing[0], swing[-1]
    lasted = last.at - first.at
    finished = sum(last.batches.batches) - sum(first.batches.batches)
    spent = {name: last.cpu[name] - first.cpu[name] for name in last.cpu}
    peak = replicas / wait
    full, whole = finished / lasted, images / (ended - began)
    return Point(
        replicas=replicas,
        seconds_per_batch=wait,
        in_flight=in_flight,
        images=images,
        batches_in_full_swing=finished,
        peak=peak,
        full_swing=round(full, 4),
        whole_job=round(whole, 4),
        share_full_swing=round(full / peak, 4),
        share_whole_job=round(whole / peak, 4),
        images_per_batch=round(sum(last.batches.items) / sum(last.batches.batches), 2),
        cpu_share=round(sum(spent.values()) / lasted / (os.cpu_count() or 1), 3),
        cpu_ms_per_image={name: round(1000 * value / finished, 1) for name, value in spent.items()},
    )


def _sample(site: Site, job_id: str) -> _Sample:
    reply = httpx.get(f"{site.urls['diffusion_service']}/replicas", timeout=60, trust_env=False)
    batches = Batches.model_validate_json(reply.content)
    return _Sample(time.monotonic(), images_done(site.sessions, job_id), batches, site.cpu_seconds())


def _over(site: Site, job_id: str) -> bool:
    with site.sessions() as session:
        return session.get_one(Job, job_id).state != "running"


if __name__ == "__main__":
    main()
