"""Run a job of any size through the deployed system with models that only wait, and measure its cost per image.

    python -m research.scale --images 100000 --directory runs/scale [--workers 2] [--json FILE]

Intake as one archive, work by Celery workers, five counterfactuals and a null arm an image (method `shifts`), the
report, paging. Printed and written: memory of each program over time, database statements per image at the start, in
the middle and at the end, Redis, blocks that leasing and pages touch. A run that was stopped goes on where it was:
start it again with the same directory.

`--rows 100000` adds a job of that size whose images are done but for the last `--left`: their rows are copies of the
first job's, written by SQL (`research.scale.copied_rows`). So what depends on the number of rows is measured at full
size where there is no time to do all the work.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sqlalchemy import select

from gateway.database.pagination import encode_cursor
from gateway.database.tables import Job
from gateway.jobs import jobs
from gateway.queue import leases
from gateway.results.counterfactuals import Listing, results_page
from research.scale.copied_rows import ROWS_LEFT, make_large_job
from research.scale.images import write_archive
from research.scale.measuring import MEBIBYTE, Samples, images_done, memory, seconds, slope, statements
from research.scale.site import Site, absolute, running
from research.scale.waiting_services import MODEL
from shared.schemas.jobs import JobSpec, MethodChoice
from tests.support.block_counts import blocks

SHIFTS = ["at night", "in the snow", "in the rain", "in the fog", "at sunset"]
SPEC = JobSpec(
    task_description="classify the vehicle",
    methods=[MethodChoice(name="shifts", parameters={"shifts": list(SHIFTS), "steps": 16})],
    models=[MODEL],
)
SAMPLE_SECONDS = 10.0
WINDOW = 150  # images in which statements are counted


def main() -> None:
    """Run what the command line says and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000, help="source images that are really worked on")
    parser.add_argument("--rows", type=int, default=0, help="images of the second job, most of them copies; 0: none")
    parser.add_argument("--left", type=int, default=ROWS_LEFT, help="images of the second job that are worked on")
    parser.add_argument("--directory", type=absolute, required=True, help="where everything is kept")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--in-flight", type=int, default=8, help="images at a time in each worker")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the programs are stopped in order
    with running(arguments.directory, {}, workers=arguments.workers, in_flight=arguments.in_flight) as site:
        intake(site, arguments.images)
        job_id = str(stored_rows(site)["job"])
        if "figures" not in stored_rows(site):
            figures: dict[str, Any] = {"images": arguments.images, "workers": arguments.workers}
            figures |= work(site, job_id, arguments.images)
            figures["reading"] = reading_costs(site, job_id)
            figures["storage"] = storage(site, arguments.images)
            keep(site, {"figures": figures})
        figures = {**stored_rows(site)["figures"], "intake": stored_rows(site)["intake"]}
        if arguments.rows:
            rows, left = arguments.rows, arguments.left
            large = make_large_job(site, SPEC, job_id, arguments.images, rows, left)
            figures["large"] = {"rows": rows, "job": large, **work(site, large, rows, first=rows - left)}
            figures["large"]["reading"] = reading_costs(site, large)
    print(json.dumps(figures, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def intake(site: Site, images: int) -> None:
    """Send the archive, once; note what it cost the gateway."""
    if "job" in stored_rows(site):
        return
    archive = site.directory / "images.zip"
    write_archive(archive, images)
    before, cpu, started = memory(site, "gateway"), site.cpu_seconds()["gateway"], time.perf_counter()
    with archive.open("rb") as file:
        reply = site.http.post(
            "/jobs",
            files={
                "spec": (None, SPEC.model_dump_json(exclude_unset=True), "application/json"),
                "images": (archive.name, file, "application/octet-stream"),
            },
            headers={"Idempotency-Key": f"scale {images}"},
        )
    reply.raise_for_status()
    cost = {
        "bytes": archive.stat().st_size,
        "seconds": round(time.perf_counter() - started, 1),
        "gateway_cpu_seconds": round(site.cpu_seconds()["gateway"] - cpu, 2),
        "gateway_mib_before": round(before / MEBIBYTE, 1),
        "gateway_mib_after": round(memory(site, "gateway") / MEBIBYTE, 1),
    }
    keep(site, {"job": reply.json()["id"], "intake": cost})


def work(site: Site, job_id: str, images: int, first: int = 0) -> dict[str, Any]:
    """Wait for the job, sampling; images `first` … `images` are worked on meanwhile."""
    samples = Samples(site, job_id)
    cpu, started, before = site.cpu_seconds(), time.perf_counter(), images_done(site.sessions, job_id)
    counted: dict[int, dict[str, float]] = {}
    span = images - first
    marks = [first, first + span // 2, images - 2 * WINDOW] if span > 4 * WINDOW else [first]
    while (finished := images_done(site.sessions, job_id)) < images:
        with site.sessions() as session:
            if session.scalar(select(Job.state).where(Job.id == job_id)) != "running" and finished == images_done(
                site.sessions, job_id
            ):
                raise RuntimeError(f"job {job_id} ended with {finished} of {images} images done")
        samples.take()
        if marks and finished >= marks[0]:
            marks.pop(0)
            counted[finished] = {"claim_blocks": _claim_blocks(site), **_per_image(site, job_id, images)}
        time.sleep(SAMPLE_SECONDS if span > 500 else 1.0)
    worked, spent = time.perf_counter() - started, site.cpu_seconds()
    finished = max(1, images - before)
    report = _wait_for_report(site, job_id)
    return {
        "worked_images": images - before,
        "seconds": round(worked, 1),
        "images_per_second": round((images - before) / worked, 2),
        "cpu_ms_per_image": {name: round(1000 * (spent[name] - cpu[name]) / finished, 1) for name in spent},
        "statements_per_image": counted,
        "memory": {name: slope(samples.rows, name) for name in site.programs},
        "redis": {
            "keys": max(row["redis_keys"] for row in samples.rows),
            "messages": max(row["redis_messages"] for row in samples.rows),
            "mib": [min(row["redis_mib"] for row in samples.rows), max(row["redis_mib"] for row in samples.rows)],
        },
        "samples": len(samples.rows),
        "report": report,
    }


def reading_costs(site: Site, job_id: str) -> dict[str, Any]:
    """Seconds and blocks of the first and the last page, of the job's page, and of leasing an image."""
    owner, last = _ends(site, job_id)
    pages: dict[str, Any] = {}
    for label, cursor in (("first_page", None), ("last_page", last)):
        params = {"limit": "50"} | ({"cursor": cursor} if cursor else {})

        def ask(params: dict[str, str] = params) -> None:
            site.http.get(f"/jobs/{job_id}/results", params=params).raise_for_status()

        def touch(session: Any, cursor: str | None = cursor) -> None:
            results_page(session, owner, job_id, Listing(), cursor, 50)

        pages[label] = {"seconds": seconds(ask), "blocks": blocks(site.sessions, touch)}
    pages["job"] = {
        "seconds": seconds(lambda: site.http.get(f"/jobs/{job_id}").raise_for_status()),
        "blocks": blocks(site.sessions, lambda session: jobs.show(session, owner, job_id)),
    }
    return pages


def storage(site: Site, images: int) -> dict[str, Any]:
    """Bytes per image in the database, indexes included, by table, and in the object store."""
    tables = ("source_images", "counterfactuals", "predictions", "recorded_calls", "events", "images", "owned_images")
    with site.sessions() as session:
        sizes = {
            table: int(session.connection().exec_driver_sql(f"SELECT pg_total_relation_size('{table}')").scalar_one())
            for table in tables
        }
    objects = [path.stat().st_size for path in (site.directory / "objects" / "images").rglob("*.png")]
    return {
        "database_bytes_per_image": {table: size // images for table, size in sizes.items()},
        "objects_per_image": round(len(objects) / images, 2),
        "object_bytes_per_image": sum(objects) // images,
    }


def _per_image(site: Site, job_id: str, images: int) -> dict[str, float]:
    before = images_done(site.sessions, job_id)
    with statements(site) as counted:
        while images_done(site.sessions, job_id) < min(before + WINDOW, images):
            time.sleep(0.2)
    # Every finished image adds one event: so these are the images to which the statements belong.
    finished = counted["INSERT events"] or 1
    regular = Counter({kind: count for kind, count in counted.items() if count >= finished / 2})
    messages_per_image = {kind: round(count / finished, 2) for kind, count in sorted(regular.items())}
    return {"images": finished, "all": round(sum(regular.values()) / finished, 1), **messages_per_image}


def _claim_blocks(site: Site) -> int:
    return blocks(site.sessions, lambda session: leases.claim(session, 60))


def _wait_for_report(site: Site, job_id: str) -> dict[str, Any]:
    started, most = time.perf_counter(), 0
    before = max(memory(site, program.name) for program in site.workers)
    while True:
        most = max(most, *(memory(site, program.name) for program in site.workers))
        with site.sessions() as session:
            state = session.get_one(Job, job_id).state
        if state != "running":
            break
        time.sleep(0.25)
    page = site.http.get(f"/jobs/{job_id}/report")
    return {
        "state": state,
        "seconds": round(time.perf_counter() - started, 1),
        "worker_mib_before": round(before / MEBIBYTE, 1),
        "worker_mib_most": round(most / MEBIBYTE, 1),
        "page_bytes": len(page.content),
    }


def _ends(site: Site, job_id: str) -> tuple[str, str]:
    """The job's owner, and a cursor before its last page."""
    with site.sessions() as session:
        job = session.get_one(Job, job_id)
        images = jobs.show(session, job.owner_id, job_id).images
    return job.owner_id, encode_cursor((images - 11, "shifts", 5))


def stored_rows(site: Site) -> dict[str, Any]:
    """What a run has left for the next one in the same directory: the job's id, what intake cost."""
    path = site.directory / "kept.json"
    return json.loads(path.read_text()) if path.exists() else {}


def keep(site: Site, values: dict[str, Any]) -> None:
    """Leave something for the next run."""
    (site.directory / "kept.json").write_text(json.dumps({**stored_rows(site), **values}))


if __name__ == "__main__":
    main()
