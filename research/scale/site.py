"""Run the deployed system for these benchmarks: its processes over one directory, which a later run resumes.

Gateway, Celery workers, Postgres and Redis are the real ones (`tests.support.deployment`), the object store is a
directory, the model services wait (`research.scale.waiting_services`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from contrafact.client import Client
from gateway.auth.keys import create_key
from gateway.database.sessions import Sessions, migrate, open_engine, open_sessions
from research.scale.waiting_services import Balance
from shared.schemas.service import SERVICES, ServiceName
from tests.support.deployment import ONE_THREAD, gateway, postgres, postgres_url, redis, redis_url, worker
from tests.support.processes import UVICORN, Program, free_port

# Limits that a benchmark would meet first; everything else is as shipped.
UNLIMITED = {"CONTRAFACT_KEY_REQUESTS_PER_MINUTE": "1000000", "CONTRAFACT_METRICS_PORT": "0"}


@dataclass(frozen=True)
class Pace:
    """Seconds that a batch takes, the largest batch in items (images), and the replicas of a service."""

    seconds: float = 0.0
    max_batch: int = 16
    replicas: int = 1
    balance: Balance = "least busy"


@dataclass
class Site:
    """The running system: its programs by name, a client with a key, sessions on its database."""

    directory: Path
    programs: Mapping[str, Program]
    client: Client
    http: httpx.Client
    sessions: Sessions
    urls: Mapping[ServiceName, str]
    broker_url: str

    @property
    def workers(self) -> list[Program]:
        """The Celery workers."""
        return [program for name, program in self.programs.items() if name.startswith("worker")]

    def processes(self, program: Program) -> list[psutil.Process]:
        """A program's process and its children."""
        if program.process is None:
            return []
        try:
            mine = psutil.Process(program.process.pid)
            return [mine, *mine.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds of each program so far; those of Postgres' ended connections are its postmaster's children's."""
        return {
            name: sum(_cpu(process) for process in self.processes(program)) for name, program in self.programs.items()
        }


def absolute(text: str) -> Path:
    """A folder given on a command line, as processes of other working folders know it; Postgres wants it short."""
    return Path(text).absolute()


def _settings(directory: Path, broker_url: str, urls: Mapping[ServiceName, str], in_flight: int) -> dict[str, str]:
    return {
        "CONTRAFACT_BROKER_URL": broker_url,
        "CONTRAFACT_OBJECT_STORE": f"directory:{directory / 'objects'}",
        "CONTRAFACT_AUTHENTICATION": "true",
        "CONTRAFACT_IMAGES_IN_FLIGHT": str(in_flight),
        **{f"CONTRAFACT_{name.removesuffix('_service').upper()}_URL": url for name, url in urls.items()},
        **UNLIMITED,
        **ONE_THREAD,
    }


@contextmanager
def running(directory: Path, paces: Mapping[ServiceName, Pace], *, workers: int, in_flight: int) -> Iterator[Site]:
    """Start everything over `directory`, or go on with what is there; stop all of it at the end."""
    directory.mkdir(0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        servers = [postgres(directory), redis(directory)]
        urls = {name: f"http://127.0.0.1:{free_port()}" for name in SERVICES}
        gateway_url = f"http://127.0.0.1:{free_port()}"
        database_url = postgres_url(servers[0])
        settings = _settings(directory, redis_url(servers[1]), urls, in_flight)
        services = [_service(directory, name, paces.get(name, Pace()), urls[name]) for name in SERVICES]
        ours = [gateway(directory, gateway_url, _names(settings, database_url, "gateway"))]
        ours += [
            worker(directory, f"worker_{number}", _names(settings, database_url, "worker"))
            for number in range(1, workers + 1)
        ]
        for program in [*ours, *services, *reversed(servers)]:
            stack.callback(program.kill)
        _start(servers)
        engine = open_engine(f"{database_url}?application_name=benchmark")
        stack.callback(engine.dispose)
        migrate(engine)
        sessions = open_sessions(engine)
        key = _key(directory, sessions)
        _start([*services, *ours])
        client = Client(gateway_url, key)
        stack.callback(client.close)
        http = httpx.Client(
            base_url=gateway_url, headers={"Authorization": f"Bearer {key}"}, timeout=7_200, trust_env=False
        )
        stack.callback(http.close)
        programs = {program.name: program for program in (*servers, *services, *ours)}
        yield Site(directory, programs, client, http, sessions, urls, redis_url(servers[1]))
        for program in ours[1:]:  # as an orchestrator would: what they work on is given back at once
            if program.alive:
                program.stop(120)


def _names(settings: Mapping[str, str], database_url: str, name: str) -> dict[str, str]:
    return {**settings, "CONTRAFACT_DATABASE_URL": f"{database_url}?application_name={name}"}


def _service(directory: Path, name: ServiceName, pace: Pace, url: str) -> Program:
    app = f"research.scale.waiting_services:{name}"
    environment = {
        "WAITING_SECONDS": str(pace.seconds),
        "WAITING_REPLICAS": str(pace.replicas),
        "WAITING_BALANCE": pace.balance,
        "CONTRAFACT_MAX_BATCH": str(pace.max_batch),
        **ONE_THREAD,
    }

    def ready() -> bool:
        try:
            return httpx.get(f"{url}/readyz", timeout=10, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    command = [*UVICORN, app, "--port", url.rpartition(":")[2]]
    return Program(name, command, ready, directory / f"{name}.log", environment)


def _key(directory: Path, sessions: Sessions) -> str:
    key_file = directory / "key"
    if not key_file.exists():
        with sessions.begin() as session:
            key = create_key(session, "benchmark")
        key_file.write_text(key)
        os.chmod(key_file, 0o600)
    return key_file.read_text()


def _start(programs: Sequence[Program]) -> None:
    for program in programs:
        program.start()
    for program in programs:
        program.wait()


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)
