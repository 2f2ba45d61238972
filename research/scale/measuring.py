"""Measure a running system: memory of its programs over time, statements per image, blocks that queries touch."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
import redis
from sqlalchemy import select, text

from gateway.database.sessions import Sessions
from gateway.database.tables import Job
from research.scale.site import Site

MEBIBYTE = 1024**2
_EXECUTED = re.compile(r"^worker\|LOG:  (?:execute [^:]*|statement): (.*(?:\n\t.*)*)", re.MULTILINE)
_TABLE = re.compile(r"\b(?:FROM|INTO|UPDATE)\s+(\w+)", re.IGNORECASE)


@dataclass
class Samples:
    """Samples of the system while a job runs; each is one line of `path`, so that they outlast a stop."""

    site: Site
    job_id: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._path = self.site.directory / f"samples-{self.job_id}.jsonl"
        if self._path.exists():
            self.rows = [json.loads(line) for line in self._path.read_text().splitlines()]
        self._began = time.monotonic() - (self.rows[-1]["seconds"] if self.rows else 0.0)

    def take(self) -> dict[str, Any]:
        """Note memory (MiB, children included), Redis and progress now."""
        broker = redis.Redis.from_url(self.site.broker_url)
        row: dict[str, Any] = {
            "seconds": round(time.monotonic() - self._began, 1),
            "images": images_done(self.site.sessions, self.job_id),
            "memory": {name: round(memory(self.site, name) / MEBIBYTE, 1) for name in self.site.programs},
            "redis_keys": broker.dbsize(),
            "redis_messages": broker.llen("contrafact"),
            "redis_mib": round(broker.info("memory")["used_memory"] / MEBIBYTE, 2),
        }
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row


def images_done(sessions: Sessions, job_id: str) -> int:
    """Images of a job that are done, by its events: the first says that it began."""
    with sessions() as session:
        return max(0, (session.scalar(select(Job.events).where(Job.id == job_id)) or 0) - 1)


def memory(site: Site, name: str) -> int:
    """Bytes of memory of a program's processes; what several processes share is divided among them (PSS)."""
    total = 0
    for process in site.processes(site.programs[name]):
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


@contextmanager
def statements(site: Site) -> Iterator[Counter[str]]:
    """Count the workers' statements, as Postgres itself logs them, by kind and table; filled in at the end."""
    counted: Counter[str] = Counter()
    log = site.programs["postgres"].log
    _logging(site.sessions, "all")
    start = log.stat().st_size
    try:
        yield counted
    finally:
        _logging(site.sessions, "none")
        with log.open("rb") as file:
            file.seek(start)
            for statement in _EXECUTED.findall(file.read().decode(errors="replace")):
                counted[_kind(statement)] += 1


def _kind(statement: str) -> str:
    verb = statement.split(maxsplit=1)[0].upper()
    table = _TABLE.search(statement)
    return f"{verb} {table.group(1)}" if table else "ping" if verb == ";" else verb


def _logging(sessions: Sessions, label: str) -> None:
    engine = sessions.kw["bind"]
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"ALTER SYSTEM SET log_statement = '{label}'"))
        connection.execute(text("ALTER SYSTEM SET log_line_prefix = '%a|'"))
        connection.execute(text("SELECT pg_reload_conf()"))
    time.sleep(0.5)


def seconds(work: Callable[[], object], times: int = 7) -> float:
    """The median of how long something takes."""
    seconds_of_reads = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        seconds_of_reads.append(time.perf_counter() - started)
    return round(statistics.median(seconds_of_reads), 4)


def slope(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """How a program's memory grew with the images done: MiB per 10,000 images (least squares), first third left out."""
    later_rows = rows[len(rows) // 3 :]
    points = [(float(row["images"]), float(row["memory"][name])) for row in later_rows if name in row["memory"]]
    if len({x for x, _ in points}) < 2:
        return {"least": 0.0, "most": 0.0, "mib_per_10000_images": 0.0}
    fit = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    values = [y for _, y in points]
    return {"least": min(values), "most": max(values), "mib_per_10000_images": round(fit.slope * 10_000, 2)}
