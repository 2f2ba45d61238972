"""Measure the gallery of a large job: server time of its pages, bytes of page and scripts.

    python -m research.gallery [--sources 2500 10000] [--repeats 9] [--json FILE]

The rows are copies of a drawn job of 48 source images with 4 or 5 edits each and two models under test, in SQLite; the
copies share its images. The gateway and its HTTP are real. For each page: wall-clock milliseconds from request to
reply, and CPU milliseconds of the process, client included. `cold`: the first request of the page, after a request for
the small job has loaded templates and code. `counting`: the first request for the counts beside the filters, which the
page's script sends. `again`: the median of the repeats, whose counts are in memory.
The goals for 10,000 images are 200 ms for the first page, cold, and 50 kB of scripts.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from gateway.database.pagination import encode_cursor
from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage, Table
from shared.chunks import chunks
from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import serve_gateway
from tests.support.job_counts import store_counts

PER_CLASS = 16
ROWS_AT_ONCE = 5_000
NARROW = "class=bus&factor=weather&value=snow&direction=to&flipped=true&model=night-bus"


def main() -> None:
    """Measure every size that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, nargs="+", default=[2_500, 10_000], help="source images of the jobs")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as directory, serve_gateway(Path(directory)) as gateway:
        add_drawn_job(gateway.context.sessions, gateway.context.store, per_class=PER_CLASS)
        gateway.client.get("/jobs/drawn/gallery").raise_for_status()
        for sources in options.sources:
            with gateway.context.sessions.begin() as session:
                edits = copy_job(session, "drawn", f"large-{sources}", sources)
            for row in measure(gateway.client, f"large-{sources}", sources, options.repeats):
                figures.append({"sources": sources, "counterfactuals": edits, **row})
                print(json.dumps(figures[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def measure(client: httpx.Client, job: str, sources: int, repeats: int) -> Iterator[dict[str, Any]]:
    """The figures of each kind of page."""
    path = f"/jobs/{job}/gallery"
    middle = encode_cursor((sources // 2, "dillema", 0))
    addresses = {
        "first page": path,
        "page in the middle": f"{path}?cursor={middle}",
        "narrow filters": f"{path}?{NARROW}",
        "rejected": f"{path}?verdict=rejected",
    }
    for page, address in addresses.items():
        cold = _timed(client, address)
        counting = _timed(client, f"{address}{'&' if '?' in address else '?'}counts=true")
        walls, cpus = zip(*(_timed(client, address) for _ in range(repeats)), strict=True)
        again = statistics.median(walls), statistics.median(cpus)
        reply = client.get(address).raise_for_status()
        scripts = re.findall(r'<script src="([^"]+)"', reply.text)
        yield {
            "page": page,
            **{
                f"{name}_{clock}_ms": round(milliseconds)
                for name, times in (("cold", cold), ("counting", counting), ("again", again))
                for clock, milliseconds in zip(("wall", "cpu"), times, strict=True)
            },
            "page_kb": round(len(reply.content) / 1000),
            "script_kb": round(sum(len(client.get(script).content) for script in scripts) / 1000, 1),
        }


def _timed(client: httpx.Client, address: str) -> tuple[float, float]:
    """Wall-clock and CPU milliseconds of a request."""
    wall, cpu = time.perf_counter(), time.process_time()
    client.get(address).raise_for_status()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)


def copy_job(session: Session, small: str, large: str, sources: int) -> int:
    """Write a job with `sources` source images whose rows repeat those of `small`. Returns the number of its edits."""
    job = _columns(session.get_one(Job, small))
    session.add(Job(**{**job, "id": large, "idempotency_key": None, "counts": {}}))
    session.flush()
    originals = list(session.scalars(select(SourceImage).where(SourceImage.job_id == small).order_by("position")))
    arms = {row.id: _rows(session, Counterfactual, row.id) for row in originals}
    predictions = {row.id: _rows(session, Prediction, row.id) for row in originals}
    written: dict[type[Table], list[dict[str, Any]]] = {SourceImage: [], Counterfactual: [], Prediction: []}
    for position in range(sources):
        original = originals[position % len(originals)]
        place = {"job_id": large, "source_image_id": _id(large, position, original.id)}
        source = {**_columns(original), "id": place["source_image_id"], "job_id": large, "position": position}
        written[SourceImage].append(source)
        for arm in arms[original.id]:
            written[Counterfactual].append(
                {**arm, **place, "id": _id(large, position, arm["id"]), "position": position}
            )
        for row in predictions[original.id]:
            of = row["counterfactual_id"]
            copy = {**row, **place, "id": _id(large, position, row["id"])}
            written[Prediction].append({**copy, "counterfactual_id": None if of is None else _id(large, position, of)})
    for table, rows in written.items():
        for batch in chunks(rows, ROWS_AT_ONCE):
            session.execute(insert(table), batch)
    store_counts(session, large)
    return sum(row["arm"] == "edit" for row in written[Counterfactual])


def _id(job: str, position: int, id: str) -> str:
    return f"{job}-{position}-{id}"


def _columns(row: Table) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in row.__mapper__.column_attrs}


def _rows(session: Session, table: type[Counterfactual] | type[Prediction], source: str) -> list[dict[str, Any]]:
    return [_columns(row) for row in session.scalars(select(table).where(table.source_image_id == source))]


if __name__ == "__main__":
    main()
