"""Measure the pages and endpoints of a large job: server time, bytes of the reply, and of a page's scripts.

    python -m research.large_jobs [--sources 2500 10000] [--classes 3] [--repeats 9] [--json FILE]

The rows are copies of a drawn job of 48 source images with 4 or 5 edits each and two models under test, in SQLite; the
copies share its images. The gateway and its HTTP are real. For each page: wall-clock milliseconds from request to
reply, and CPU milliseconds of the process, client included. `cold`: the first request of the page, after a request for
the small job has loaded templates and code. `counting`: the first request for the counts beside the filters, which the
page's script sends. `again`: the median of the repeats, whose counts are in memory.
The goals for 10,000 images are 200 ms for the gallery's first page, cold, and 50 kB of scripts; for 1,000 classes
besides, .5 s and 500 kB for every page and endpoint, 5 MB for the report, and 10 s for building it.

With `--classes N` the copies have N classes: every copied class is numbered. Besides the gallery, the pages and
endpoints that read the results are measured then, after the report is built.
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
from gateway.report.build import build_report
from shared.chunks import chunks
from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.job_counts import store_counts

PER_CLASS = 16
ROWS_AT_ONCE = 5_000
RESULT_PAGES = (
    "/jobs/{job}",
    "/jobs/{job}/results?limit=1",
    "/jobs/{job}/results?limit=50",
    "/jobs/{job}/findings",
    "/jobs/{job}/view",
    "/jobs/{job}/notes",
    "/jobs/{job}/review",
    "/jobs/{job}/map",
    "/jobs/{job}/compare?model=night-bus&other_model=sound",
    "/jobs/{job}/comparison?model=night-bus&other_model=sound",
    "/jobs/{job}/report?format=md",
    "/jobs/{job}/report?format=json",
    "/jobs/{job}/report",
)
NARROW = "class=bus&factor=weather&value=snow&direction=to&flipped=true&model=night-bus"


def main() -> None:
    """Measure every size that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, nargs="+", default=[2_500, 10_000], help="source images of the jobs")
    parser.add_argument("--classes", type=int, default=0, help="of the copies; default: the drawn job's")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as directory, serve_gateway(Path(directory)) as gateway:
        add_drawn_job(gateway.context.sessions, gateway.context.store, per_class=PER_CLASS)
        gateway.client.get("/jobs/drawn/gallery").raise_for_status()
        for sources in options.sources:
            with gateway.context.sessions.begin() as session:
                edits = copy_job(session, "drawn", f"large-{sources}", sources, options.classes)
            if options.classes:
                rows = measure_results(gateway, f"large-{sources}")
            else:
                rows = measure(gateway.client, f"large-{sources}", sources, options.repeats)
            for row in rows:
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


def measure_results(gateway: Gateway, job: str) -> Iterator[dict[str, Any]]:
    """The figures of pages and endpoints that read results, each asked once for a job of another name first."""
    began = time.process_time()
    build_report(gateway.context.sessions, gateway.context.store, job, [])
    yield {"page": "building the report", "cpu_ms": round(1000 * (time.process_time() - began))}
    build_report(gateway.context.sessions, gateway.context.store, "drawn", [])
    for page in RESULT_PAGES:
        gateway.client.get(page.format(job="drawn")).raise_for_status()
        wall, cpu = _timed(gateway.client, page.format(job=job))
        size = len(gateway.client.get(page.format(job=job)).content)
        yield {"page": page, "wall_ms": round(wall), "cpu_ms": round(cpu), "kb": round(size / 1000)}


def _timed(client: httpx.Client, address: str) -> tuple[float, float]:
    """Wall-clock and CPU milliseconds of a request."""
    wall, cpu = time.perf_counter(), time.process_time()
    client.get(address).raise_for_status()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)


def copy_job(session: Session, small: str, large: str, sources: int, classes: int = 0) -> int:
    """Write a job with `sources` source images whose rows repeat those of `small`. Returns the number of its edits.

    With `classes`, a copied class has a number, and so many classes exist in all.
    """
    job = _columns(session.get_one(Job, small))
    few = job["classes"]
    if classes:
        job["classes"] = [f"{few[number % len(few)]} {number // len(few)}" for number in range(classes)]
    session.add(Job(**{**job, "id": large, "idempotency_key": None, "counts": {}}))
    session.flush()
    originals = list(session.scalars(select(SourceImage).where(SourceImage.job_id == small).order_by("position")))
    arms = {row.id: _rows(session, Counterfactual, row.id) for row in originals}
    predictions = {row.id: _rows(session, Prediction, row.id) for row in originals}
    written: dict[type[Table], list[dict[str, Any]]] = {SourceImage: [], Counterfactual: [], Prediction: []}
    for position in range(sources):
        original = originals[position % len(originals)]
        number = f" {position % (classes // len(few))}" if classes else ""
        place = {"job_id": large, "source_image_id": _id(large, position, original.id)}
        source = {**_columns(original), "id": place["source_image_id"], "job_id": large, "position": position}
        written[SourceImage].append({**source, "ground_truth": f"{original.ground_truth}{number}"})
        for arm in arms[original.id]:
            written[Counterfactual].append(
                {**arm, **place, "id": _id(large, position, arm["id"]), "position": position}
            )
        for row in predictions[original.id]:
            of = row["counterfactual_id"]
            copy = {**row, **place, **_renamed(row, number), "id": _id(large, position, row["id"])}
            written[Prediction].append({**copy, "counterfactual_id": None if of is None else _id(large, position, of)})
    for table, rows in written.items():
        for batch in chunks(rows, ROWS_AT_ONCE):
            session.execute(insert(table), batch)
    store_counts(session, large)
    return sum(row["arm"] == "edit" for row in written[Counterfactual])


def _renamed(row: dict[str, Any], number: str) -> dict[str, Any]:
    """What a prediction says about classes, with numbered ones."""
    top = [{**share, "name": share["name"] + number} for share in row["detail"]["top"]]
    scores = {label + number: score for label, score in row["scores"].items()}
    return {"predicted": row["predicted"] + number, "scores": scores, "detail": {**row["detail"], "top": top}}


def _id(job: str, position: int, id: str) -> str:
    return f"{job}-{position}-{id}"


def _columns(row: Table) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in row.__mapper__.column_attrs}


def _rows(session: Session, table: type[Counterfactual] | type[Prediction], source: str) -> list[dict[str, Any]]:
    return [_columns(row) for row in session.scalars(select(table).where(table.source_image_id == source))]


if __name__ == "__main__":
    main()
