"""Measure at full size what depends only on the number of rows, with Postgres and one process.

    python -m research.scale.rows --directory runs/scale --rows 10000 30000 100000 [--json FILE]

`--directory` is one that `python -m research.scale` has worked in, not running now. For each size a job is written
whose rows are copies of those that its workers wrote (`copied_rows`); the last 20 images are pending. Then: the blocks
that leasing an image, the first, the middle and the last page and the job's progress touch; and the peak of memory
while the report is built, which is done in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.pagination import encode_cursor
from gateway.database.sessions import Sessions, migrate, open_engine, open_sessions
from gateway.database.tables import Job, SourceImage
from gateway.jobs import jobs
from gateway.queue import leases
from gateway.report.build import build_report
from gateway.results.counterfactuals import Listing, results_page
from research.scale.copied_rows import add_sources, fill
from research.scale.site import absolute
from shared.media.storage import DirectoryStore
from tests.support.block_counts import blocks
from tests.support.deployment import postgres, postgres_url

PENDING = 20


def main() -> None:
    """Measure every size that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=absolute, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    server = postgres(arguments.directory)
    server.start()
    try:
        server.wait()
        engine = open_engine(postgres_url(server))
        migrate(engine)
        sessions = open_sessions(engine)
        small, images = _work(sessions)
        points = []
        for rows in arguments.rows:
            large = make_copies(sessions, small, images, rows, PENDING)
            points.append(_measure(sessions, large, rows) | _report(arguments.directory, postgres_url(server), large))
            print(json.dumps(points[-1]), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps({"copies_of": images, "points": points}, indent=2) + "\n")
    finally:
        server.kill()


def _work(sessions: Sessions) -> tuple[str, int]:
    """The job that workers did, and how many of its first images are done without a gap."""
    with sessions() as session:
        job = session.scalars(select(Job.id).order_by(Job.created_at).limit(1)).one()
        waits = select(SourceImage.position).where(SourceImage.job_id == job, SourceImage.state != "done")
        first = session.scalar(waits.order_by(SourceImage.position).limit(1))
        total = session.scalar(select(SourceImage.position + 1).order_by(SourceImage.position.desc()).limit(1))
        return job, int(first if first is not None else total or 0)


def make_copies(sessions: Sessions, small: str, images: int, rows: int, pending: int) -> str:
    """Write a job of `rows` images, all but the last `pending` done like the `images` of job `small`; its id."""
    large = f"copies-{rows}"
    with sessions.begin() as session:
        if session.get(Job, large) is None:
            old = session.get_one(Job, small)
            shared_columns = ("owner_id", "task_description", "classes", "methods", "models", "profile", "seed", "spec")
            session.add(Job(id=large, events=1, **{name: getattr(old, name) for name in shared_columns}))
            session.flush()
            add_sources(session, small, large, images, rows)
    fill(sessions, small, large, images, rows - pending)
    return large


def _measure(sessions: Sessions, job: str, rows: int) -> dict[str, Any]:
    with sessions() as session:
        owner = session.get_one(Job, job).owner_id

    def page(position: int) -> int:
        cursor = encode_cursor((position, "shifts", 5))
        return blocks(sessions, lambda session: results_page(session, owner, job, Listing(), cursor, 50))

    def progress(session: Session) -> None:
        jobs.show(session, owner, job)

    started = time.perf_counter()
    with sessions() as session:
        progress(session)
    return {
        "rows": rows,
        "blocks": {
            "claim": blocks(sessions, lambda session: leases.claim(session, 60)),
            "page": {"first": page(-1), "middle": page(rows // 2), "last": page(rows - PENDING - 11)},
            "progress": blocks(sessions, progress),
        },
        "progress_seconds": round(time.perf_counter() - started, 3),
    }


def _report(directory: Path, url: str, job: str) -> dict[str, Any]:
    command = [
        sys.executable,
        "-c",
        f"from {__spec__.name} import report; report({str(directory)!r}, {url!r}, {job!r})",
    ]
    return {"report": json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)}


def report(directory: str, url: str, job: str) -> None:
    """Build a job's report in this process and print what that took: MiB before and at most, seconds, CPU seconds."""
    sessions, store = open_sessions(open_engine(url)), DirectoryStore(Path(directory) / "objects")
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    results = build_report(sessions, store, job)
    after = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "sources": results.sources,
        "counterfactuals": sum(method_results.counterfactuals for method_results in results.results),
        "mib_before": round(before.ru_maxrss / 1024, 1),
        "mib_most": round(after.ru_maxrss / 1024, 1),
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
