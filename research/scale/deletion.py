"""Delete a job of full size while another one runs: what the request takes, and what the other job notices.

    python -m research.scale.deletion --directory runs/deletion --rows 100000 [--json FILE]

The large job's rows are copies of those that workers wrote for a small one (`copied_rows`); all its images are done.
Measured: `GET /jobs/{id}` of both; images a second of a third job, on which two workers work, before, during and after
the deletion; the seconds of `GET /jobs/{id}` of that job meanwhile; the longest transaction that is open in Postgres.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, text, update

from gateway.database.tables import Counterfactual, Event, Job, Prediction, SourceImage
from research.scale.__main__ import SPEC, intake, stored_rows, work
from research.scale.copied_rows import upload
from research.scale.images import name, pictures
from research.scale.measuring import MEBIBYTE, images_done, memory
from research.scale.rows import make_copies
from research.scale.site import Site, absolute, running
from shared.problems import Problem
from shared.schemas.jobs import JobRequest, ManifestImage

SMALL = 100
OTHER_FIRST = 20_000_000  # the third job's pictures: no recorded call answers for them
REQUESTS = 50
UNDISTURBED_SECONDS = 60.0
LOOK_SECONDS = 0.05
_OLDEST = (
    "SELECT application_name, extract(epoch FROM clock_timestamp() - xact_start) FROM pg_stat_activity"
    " WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend' ORDER BY xact_start LIMIT 1"
)


def main() -> None:
    """Run what the command line says and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=absolute, required=True, help="where everything is kept")
    parser.add_argument("--rows", type=int, default=100_000, help="images of the job that is deleted")
    parser.add_argument("--images", type=int, default=8_000, help="images of the job that runs meanwhile")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    with running(arguments.directory, {}, workers=arguments.workers, in_flight=8) as site:
        intake(site, SMALL)
        small = str(stored_rows(site)["job"])
        work(site, small, SMALL)
        large = make_large(site, small, arguments.rows, SMALL)
        measured = measure(site, small, large, arguments.images, UNDISTURBED_SECONDS)
    figures = {"rows": arguments.rows, "workers": arguments.workers} | measured
    print(json.dumps(figures, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def make_large(site: Site, small: str, rows: int, images: int) -> str:
    """Write the job that is deleted, copies of the `images` of job `small`, while no worker runs; its id."""
    for program in site.workers:
        program.stop(120)
    large = make_copies(site.sessions, small, images, rows, pending=0)
    for program in site.workers:
        program.start()
    for program in site.workers:
        program.wait()
    return large


def measure(site: Site, small: str, large: str, images: int, undisturbed: float) -> dict[str, Any]:
    """Delete job `large` while a job of `images` images runs; `undisturbed`: seconds measured before and after."""
    with site.sessions.begin() as session:
        session.execute(update(Job).where(Job.id == large).values(state="done"))
    figures: dict[str, Any] = {"rows_before": row_counts(site, large)}
    pages = {label: request_seconds(site, job) for label, job in (("small", small), ("large", large))}
    figures["job_page_seconds"] = {label: spread(seconds) for label, seconds in pages.items()}
    other_job = start_job(site, images)
    while not images_done(site.sessions, other_job):
        time.sleep(1)
    with watch_deletion(site, other_job) as watch:
        time.sleep(undisturbed)
    figures["before"] = watch.figures()
    with watch_deletion(site, other_job) as watch:
        started = time.perf_counter()
        site.http.delete(f"/jobs/{large}").raise_for_status()
        figures["request_seconds"] = round(time.perf_counter() - started, 2)
        figures["left_after_request"] = row_counts(site, large)["source_images"]
        figures["page_of_deleted_job"] = site.http.get(f"/jobs/{large}").status_code
        while job_exists(site, large):
            time.sleep(0.2)
        figures["seconds_until_gone"] = round(time.perf_counter() - started, 1)
    figures["during"] = watch.figures() | {"other_job_unfinished": images_done(site.sessions, other_job) < images}
    figures["rows_after"] = row_counts(site, large)
    with watch_deletion(site, other_job) as watch:
        time.sleep(undisturbed)
    figures["after"] = watch.figures() | {"other_job_unfinished": images_done(site.sessions, other_job) < images}
    figures["gateway_mib"] = round(memory(site, "gateway") / MEBIBYTE, 1)
    site.http.post(f"/jobs/{other_job}/cancel").raise_for_status()
    return figures


def start_job(site: Site, images: int) -> str:
    """Upload new pictures and start a job over them; its id."""
    entries = []
    for number, (_, data) in enumerate(pictures(OTHER_FIRST, images)):
        digest = upload(site, data)
        entries.append(ManifestImage(digest=digest, label=name(number).split("/")[0], name=name(number)))
    body = JobRequest(**SPEC.model_dump(exclude_unset=True), images=entries).model_dump_json(exclude_unset=True)
    reply = site.http.post("/jobs", content=body, headers={"Content-Type": "application/json"})
    reply.raise_for_status()
    return str(reply.json()["id"])


@dataclass
class Watch:
    """What is noted of the running system in a while: images done, seconds of requests, ages of transactions."""

    site: Site
    job: str
    seconds: float = 0.0
    images: int = 0
    requests: list[float] = field(default_factory=list)
    failed_requests: int = 0
    oldest: dict[str, float] = field(default_factory=dict)

    def request(self) -> None:
        """Read the job's page."""
        started = time.perf_counter()
        try:
            self.site.client.job(self.job)
        except Problem:
            self.failed_requests += 1
        self.requests.append(time.perf_counter() - started)
        time.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Note the age of the oldest open transaction, by the program that opened it."""
        with self.site.sessions() as session:
            for program, age in session.execute(text(_OLDEST)):
                self.oldest[program] = max(self.oldest.get(program, 0.0), float(age))
        time.sleep(LOOK_SECONDS)

    def figures(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "seconds": round(self.seconds, 1),
            "images": self.images,
            "images_per_second": round(self.images / self.seconds, 2),
            "job_page_seconds": spread(self.requests),
            "failed_requests": self.failed_requests,
            "longest_transaction_seconds": {program: round(age, 3) for program, age in sorted(self.oldest.items())},
        }


@contextmanager
def watch_deletion(site: Site, job: str) -> Iterator[Watch]:
    """Note what happens while the block runs."""
    watch, stopping = Watch(site, job), threading.Event()

    def repeat(step: Callable[[], None]) -> None:
        while not stopping.is_set():
            step()

    threads = [threading.Thread(target=repeat, args=(step,)) for step in (watch.request, watch.look)]
    started, done = time.perf_counter(), images_done(site.sessions, job)
    for thread in threads:
        thread.start()
    try:
        yield watch
    finally:
        watch.seconds = time.perf_counter() - started
        watch.images = images_done(site.sessions, job) - done
        stopping.set()
        for thread in threads:
            thread.join()


def request_seconds(site: Site, job: str) -> list[float]:
    """Seconds of each of some readings of a job's page."""
    seconds = []
    for _ in range(REQUESTS):
        started = time.perf_counter()
        site.http.get(f"/jobs/{job}").raise_for_status()
        seconds.append(time.perf_counter() - started)
    return seconds


def spread(seconds: list[float]) -> dict[str, Any]:
    """Number, median, 95th percentile and maximum."""
    ordered = sorted(seconds)
    return {
        "n": len(ordered),
        "median": round(statistics.median(ordered), 4),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 4),
        "most": round(ordered[-1], 4),
    }


def row_counts(site: Site, job: str) -> dict[str, int]:
    """Rows of a job by table."""
    with site.sessions() as session:
        return {
            table.__tablename__: session.scalar(select(func.count()).where(table.job_id == job)) or 0
            for table in (SourceImage, Counterfactual, Prediction, Event)
        }


def job_exists(site: Site, job: str) -> bool:
    """Whether the job's row is there; it goes last."""
    with site.sessions() as session:
        return session.get(Job, job) is not None


if __name__ == "__main__":
    main()
