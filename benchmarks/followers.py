"""Measure what idle followers of jobs cost the gateway: CPU, database statements, and how late an event arrives.

    python -m benchmarks.followers --directory runs/followers [--followers 2000] [--jobs 1] [--json FILE]

The gateway is a separate process on a real Postgres. The followers are connections of this process to
`/jobs/{id}/events`. The jobs have no events except those that this benchmark adds at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import time
from pathlib import Path

import psutil

from benchmarks.scale.site import absolute
from gateway.database.events import add_event
from gateway.database.sessions import Sessions, migrate, open_engine, open_sessions
from gateway.database.tables import LOCAL_OWNER, Job, Owner
from tests.support.deployment import gateway, postgres, postgres_url
from tests.support.processes import Program, free_port

SETTLE_SECONDS = 20.0
EVENTS = 5
PATIENCE = 60.0


class Follower:
    """One connection to the events of a job; `arrived` has the times of all events after the first."""

    def __init__(self, port: int, job: str) -> None:
        self._port = port
        self._job = job
        self.ready = asyncio.Event()
        self.arrived: list[float] = []

    async def follow(self) -> None:
        """Read events until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET /jobs/{self._job}/events HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"id: "):
                if self.ready.is_set():
                    self.arrived.append(time.monotonic())
                self.ready.set()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=absolute, required=True, help="a new folder, for the database")
    parser.add_argument("--followers", type=int, default=2_000)
    parser.add_argument("--jobs", type=int, default=1, help="jobs that they follow, in turn")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long they are idle")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser


def main() -> None:
    """Start the system, follow, and print the figures."""
    arguments = _parser().parse_args()
    arguments.directory.mkdir(0o700, parents=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = postgres(arguments.directory)
    server.start()
    try:
        server.wait()
        engine = open_engine(postgres_url(server))
        migrate(engine)
        sessions = open_sessions(engine)
        jobs = _jobs(sessions, arguments.jobs)
        port = free_port()
        environment = {
            "CONTRAFACT_DATABASE_URL": postgres_url(server),
            "CONTRAFACT_OBJECT_STORE": f"directory:{arguments.directory / 'objects'}",
        }
        program = gateway(arguments.directory, f"http://127.0.0.1:{port}", environment)
        program.start()
        try:
            program.wait()
            measured = _measure(sessions, program, port, jobs, arguments.followers, arguments.seconds)
            figures = asyncio.run(measured)
        finally:
            program.kill()
        engine.dispose()
    finally:
        server.kill()
    print(json.dumps(figures, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


async def _measure(
    sessions: Sessions, program: Program, port: int, jobs: list[str], count: int, seconds: float
) -> dict[str, float]:
    assert program.process is not None
    process = psutil.Process(program.process.pid)
    before = process.memory_info().rss
    followers = [Follower(port, jobs[number % len(jobs)]) for number in range(count)]
    tasks = [asyncio.create_task(follower.follow()) for follower in followers]
    await asyncio.wait_for(asyncio.gather(*(follower.ready.wait() for follower in followers)), 10 * PATIENCE)
    await asyncio.sleep(SETTLE_SECONDS)
    cpu, statements = _cpu(process), _statements(sessions)
    await asyncio.sleep(seconds)
    idle = (_cpu(process) - cpu) / seconds, (_statements(sessions) - statements) / seconds
    memory = process.memory_info().rss - before
    late = [await _latency(sessions, followers, jobs) for _ in range(EVENTS)]
    for task in tasks:
        task.cancel()
    return {
        "followers": count,
        "jobs": len(jobs),
        "cores_while_idle": round(idle[0], 3),
        "transactions_per_second_while_idle": round(idle[1], 1),
        "kilobytes_of_memory_each": round(memory / 1024 / count, 1),
        "seconds_until_the_last_follower_has_an_event": round(max(late), 2),
        "cpu_count": os.cpu_count() or 0,
    }


async def _latency(sessions: Sessions, followers: list[Follower], jobs: list[str]) -> float:
    """Seconds from an event in each job until every follower has it."""
    expected = len(followers[0].arrived) + 1
    began = time.monotonic()
    for job in jobs:
        with sessions.begin() as session:
            add_event(session, job, "image", {"state": "done", "position": 0})
    while any(len(follower.arrived) < expected for follower in followers):
        if time.monotonic() - began > PATIENCE:
            raise SystemExit("an event did not arrive")
        await asyncio.sleep(0.02)
    return max(follower.arrived[expected - 1] for follower in followers) - began


def _jobs(sessions: Sessions, count: int) -> list[str]:
    names = [f"job-{number}" for number in range(count)]
    with sessions.begin() as session:
        session.merge(Owner(id=LOCAL_OWNER, name="local"))
        session.flush()
        for name in names:
            session.add(Job(id=name, owner_id=LOCAL_OWNER, task_description="x", methods=[], profile="tiny"))
            session.flush()
            add_event(session, name, "job", {"state": "running"})
    return names


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _statements(sessions: Sessions) -> int:
    """Transactions of the database so far; each read counts as one."""
    with sessions() as session:
        counted = session.connection().exec_driver_sql(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        )
        return int(counted.scalar_one())


if __name__ == "__main__":
    main()
