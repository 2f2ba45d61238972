"""Run the whole system in one process: the deployed apps, worker and methods over SQLite and a directory.

Threads serve gateway and model services on loopback ports. Celery's worker is a thread on an in-memory broker. Two
batches are computed at a time, for the oldest source images first (`shared.service.turns`). The gateway answers at
once; steps wait until the services are loaded. After a restart on the same directory, even after a crash, unfinished
jobs resume.

Run Celery's worker in a thread of this process, on the in-memory broker.

Replaces a model service that cannot be created, for example because a library is missing.

ASGI middleware for the model services of an embedded system: without keys, only this machine may call them.

Logging of an embedded system: everything into a file in its directory, warnings to the terminal.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from celery import Celery
from celery.concurrency.thread import TaskPool
from celery.worker import WorkController
from fastapi import FastAPI
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from embedded.directory import lock
from embedded.serving import ListeningPort
from embedded.trainer import TrainerThread
from evaluator_service.models_under_test.in_process import InProcessModel
from gateway.app import create_app
from gateway.auth.middleware import refuse_other_machines
from gateway.context import SERVICE_DEADLINE_SECONDS, SERVICE_WAIT_SECONDS, Context
from gateway.database.sessions import Sessions, migrate, open_engine, open_sessions
from gateway.model_services.clients import ModelServices
from gateway.operations.data_directory import listed_services, stored_in
from gateway.queue import leases
from gateway.queue.celery_tasks import wake_worker
from gateway.repairs import dispatch
from gateway.settings import Settings
from gateway.worker.worker import Worker, register
from shared.media.storage import DirectoryStore
from shared.package import module as own_module
from shared.package import uninterrupted
from shared.problems import Forbidden, NotReady
from shared.profiles.profile import load_profile
from shared.schemas.repairs import QUEUE
from shared.schemas.service import SERVICES, ServiceName
from shared.service import problem_replies
from shared.service.celery_app import open_celery
from shared.service.devices import unused_cuda
from shared.service.logging import ROOT, JsonFormatter, mask
from shared.service.problem_replies import problem_reply
from shared.service.settings import ServiceSettings
from shared.service.threads import compute_threads, openmp_threads, usable_cores
from shared.service.turns import ComputeTurns

LIBRARIES = frozenset({"transformers", "diffusers", "huggingface_hub", "sklearn", "torch", "torchvision", "timm"})
START_SECONDS = 30.0
logger = logging.getLogger("contrafact.embedded")
LOG = "contrafact.log"
# A job can be created once the evaluator lists its models; the others load in the order of the stages.
START_ORDER: tuple[ServiceName, ...] = ("evaluator_service", "caption_service", "llm_service", "diffusion_service")
DRAIN_SECONDS = 2.0  # the worker ends its calls before the services stop, so no call waits for their batches
# Two batches with half of the cores each are faster than one batch with all: small networks do not fill many threads.
BATCHES_AT_ONCE = 2
DEADLINE_SECONDS = 3000.0  # on a slow machine a rendering waits for those of all other images in flight


@dataclass(frozen=True, slots=True)
class Embedded:
    """A running system: the URLs of the gateway and of each model service, and its directory."""

    base_url: str
    service_urls: Mapping[ServiceName, str]
    directory: Path


@contextmanager
def run_embedded(
    directory: Path,
    profile: str = "tiny",
    *,
    deterministic: bool = False,
    host: str = "127.0.0.1",
    port: int = 0,
    images_in_flight: int | None = None,
    service_urls: Mapping[ServiceName, str] | None = None,
    in_process: Mapping[str, InProcessModel] | None = None,
    drain_seconds: float = DRAIN_SECONDS,
) -> Iterator[Embedded]:
    """Run the system until the block ends. Then everything stops, and unfinished images wait for the next run.

    `port` 0 takes a free one. `images_in_flight` None: `CONTRAFACT_IMAGES_IN_FLIGHT`, or its default. With
    `service_urls`, these model services are used and none is started. `in_process` are further models under test, by
    name: objects of this process. At the end, batches get `drain_seconds` to finish.
    Raises `embedded.directory.DirectoryInUse`, `shared.profiles.profile.ProfileError`, and OSError for a port that is
    taken.
    """
    directory = directory.resolve()
    chosen = load_profile(profile)
    with ExitStack() as stack:
        stack.enter_context(lock(directory))
        first_start = not (directory / LOG).exists()
        stack.enter_context(logging_into(directory / LOG))
        gateway_port = ListeningPort(host, port)
        stack.callback(gateway_port.close)
        settings = gateway_settings(directory, profile, images_in_flight)
        store = DirectoryStore(directory / "objects", gateway_port.base_url)
        engine = stack.enter_context(_engine(settings.database_url, store))  # if it fails, no thread loads weights
        if service_urls is None:
            with suppress(ImportError):  # the services say so
                # Before any thread computes: scipy asks a torch that another thread still imports for its Tensor.
                uninterrupted(lambda: importlib.import_module("torch"))
            configured = _service_settings(profile, deterministic, gateway_port.base_url, directory, drain_seconds)
            service_urls = stack.enter_context(_model_services(configured, in_process, first_start))
        sessions = open_sessions(engine)
        celery = open_celery(settings.broker_url)
        celery.conf.task_default_queue = f"contrafact {directory}"  # all systems of a process share the memory broker
        services = ModelServices(service_urls, SERVICE_DEADLINE_SECONDS, SERVICE_WAIT_SECONDS)
        gateway_port.serve(
            create_app(Context(settings, chosen, sessions, store, services, lambda: wake_worker(celery)))
        )
        stack.enter_context(_worker(settings, sessions, store, service_urls, celery))
        stack.enter_context(listed_services(directory, profile, service_urls))
        wake_worker(celery)
        yield Embedded(gateway_port.base_url, service_urls, directory)


@contextmanager
def _engine(url: str, store: DirectoryStore) -> Iterator[Engine]:
    engine = open_engine(url)
    migrate(engine)
    with open_sessions(engine).begin() as session:
        leases.expire_leases(session)  # the directory's lock proves that their holders are dead
        dispatch.record_deaths(session, store)
    try:
        yield engine
    finally:
        with suppress(DBAPIError), open_sessions(engine).begin() as session:
            dispatch.revoke_leases(session)  # the trainer was stopped, and did not die
        engine.dispose()


@contextmanager
def _worker(
    settings: Settings,
    sessions: Sessions,
    store: DirectoryStore,
    service_urls: Mapping[ServiceName, str],
    celery: Celery,
) -> Iterator[None]:
    services = ModelServices(service_urls, settings.service_deadline_seconds, settings.service_wait_seconds)
    worker = Worker(settings, sessions, store, services, celery)
    register(celery, worker)
    trainer = TrainerThread(celery, store, settings.profile)
    thread = CeleryThread(celery, settings.images_in_flight)
    try:
        yield
    finally:
        worker.stop()
        trainer.stop()
        thread.stop()
        services.close()


def end_process() -> NoReturn:
    """End this process with status 0, after `run_embedded`.

    A thread may still load a model or compute a batch without a caller. Python's normal exit would abort with it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def share_cores(configured: ServiceSettings) -> tuple[int, int]:
    """Return the number of batches that compute at a time, and the threads of each.

    `CONTRAFACT_BATCHES_AT_ONCE` and `CONTRAFACT_THREADS` set them. Otherwise the batches share the usable cores, or as
    many threads as `OMP_NUM_THREADS` allows if that is less and `CONTRAFACT_THREADS` is unset.
    """
    allowed = None if configured.threads else openmp_threads()
    cores = compute_threads(0, allowed or usable_cores())
    at_once = (
        configured.batches_at_once if "batches_at_once" in configured.model_fields_set else min(cores, BATCHES_AT_ONCE)
    )
    return at_once, configured.threads or max(1, cores // at_once)


def gateway_settings(directory: Path, profile: str, images_in_flight: int | None = None) -> Settings:
    """Settings of gateway and worker: those of the environment, but for what one process on this machine determines."""
    settings = Settings(**stored_in(directory), broker_url="memory://localhost", profile=profile, authentication=False)
    chosen: dict[str, int | float] = {} if images_in_flight is None else {"images_in_flight": images_in_flight}
    if "service_deadline_seconds" not in settings.model_fields_set:
        chosen["service_deadline_seconds"] = DEADLINE_SECONDS
    return settings.model_copy(update=chosen)


@contextmanager
def _model_services(
    settings: ServiceSettings, in_process: Mapping[str, InProcessModel] | None, first_start: bool
) -> Iterator[dict[ServiceName, str]]:
    """Yield the URLs of the four services at once; a thread imports and serves them, and they load one by one."""
    turns = ComputeTurns(settings.batches_at_once)
    ports: dict[ServiceName, ListeningPort] = {name: ListeningPort() for name in SERVICES}
    stopping = threading.Event()

    def serve_all() -> None:
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars of libraries would mix with our own lines
        for name in START_ORDER:
            if stopping.is_set():
                return
            app = _service_app(name, settings, turns, in_process)
            app.add_middleware(LocalCallers)
            ports[name].serve(app)
        if first_start and (hint := unused_cuda(importlib.import_module("torch"))):
            logger.warning(hint)

    thread = threading.Thread(target=serve_all, name="start services", daemon=True)
    thread.start()
    try:
        yield {name: port.base_url for name, port in ports.items()}
    finally:
        stopping.set()
        thread.join()
        closers = [threading.Thread(target=port.close) for port in ports.values()]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()


def _service_app(
    name: ServiceName, settings: ServiceSettings, turns: ComputeTurns, in_process: Mapping[str, InProcessModel] | None
) -> FastAPI:
    """The app of a service. If it cannot be created, an app that answers every request with the error."""
    options = {"in_process": in_process} if name == "evaluator_service" and in_process else {}
    try:
        app: FastAPI = importlib.import_module(own_module(f"{name}.app")).create_app(settings, turns, **options)
    except Exception as error:
        logger.exception("%s cannot start", name)
        return failed_service(name, error)
    return app


def _service_settings(
    profile: str, deterministic: bool, gateway_url: str, directory: Path, drain_seconds: float
) -> ServiceSettings:
    configured = ServiceSettings()
    at_once, threads = share_cores(configured)
    return ServiceSettings(
        profile=profile,
        deterministic=deterministic or configured.deterministic,
        threads=threads,
        batches_at_once=at_once,
        drain_seconds=drain_seconds,
        # Here a service that ends takes the whole system with it, and a slow processor is not a hung GPU.
        max_batch_seconds=configured.max_batch_seconds if "max_batch_seconds" in configured.model_fields_set else 0.0,
        model_origin=gateway_url,
        quarantine=configured.quarantine or str(directory / "quarantine"),
    )


class StepThreads(TaskPool):  # type: ignore[misc]
    """Celery's pool of threads, which sets the worker's own app as the current app of each thread.

    Celery looks up a message's task in the current app. By default that is the last app of the process. With two
    embedded systems in one process, the first would run the steps of the second.
    """

    def __init__(self, *arguments: Any, app: Celery, **options: Any) -> None:
        super().__init__(*arguments, app=app, **options)
        self.executor = ThreadPoolExecutor(max_workers=self.limit, initializer=app.set_current)


class CeleryThread:
    """A running worker with a pool of threads; `stop` ends it once its steps have given up their leases."""

    def __init__(self, celery: Celery, concurrency: int) -> None:
        celery.finalize()  # without this, Celery accepts steps and drops them without a log line
        ready = threading.Event()
        self._controller = WorkController(
            app=celery,
            pool_cls=StepThreads,
            concurrency=concurrency,
            queues=[celery.conf.task_default_queue, QUEUE],
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            ready_callback=lambda _: ready.set(),
        )
        self._thread = threading.Thread(target=self._controller.start, name="celery", daemon=True)
        self._thread.start()
        if not ready.wait(START_SECONDS):
            raise RuntimeError("Celery's worker did not start")

    def stop(self) -> None:
        """Take no more messages, let the running steps end, and join the threads."""
        self._controller.stop(in_sighandler=False)
        self._thread.join(START_SECONDS)


def failed_service(name: str, error: Exception) -> FastAPI:
    """An app that answers every request with NotReady, as a service does whose weights failed to load."""
    reason = f"{name} cannot start: {type(error).__name__}: {error}"
    app = FastAPI(title=name)

    async def refuse(path: str) -> None:
        raise NotReady(reason, members={"failed": True})

    app.add_api_route("/{path:path}", refuse, methods=["GET", "POST"])
    problem_replies.install(app)
    return app


class LocalCallers:
    """Answers 403 to requests whose Host, Origin or address is not this machine's, such as those of web pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                refuse_other_machines(scope, Headers(scope=scope), "ask it by its address on 127.0.0.1")
            except Forbidden as problem:
                await problem_reply(problem, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


@contextmanager
def logging_into(path: Path) -> Iterator[None]:
    """Append JSON lines of the project's loggers to `path`, and warnings in plain words to standard error."""
    file = logging.FileHandler(path, encoding="utf-8", delay=True)
    file.setFormatter(JsonFormatter())
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.WARNING)
    terminal.setFormatter(_Short())
    logger = logging.getLogger(ROOT)
    logger.setLevel(logging.INFO)
    handlers = (file, terminal)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
        file.close()


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Send what LIBRARIES warn of to the project's log instead of standard error while the block runs.

    Warnings of other code, such as the caller's, are shown as ever.
    """
    log = logging.getLogger(f"{ROOT}.libraries")
    shown, loggers = warnings.showwarning, [logging.getLogger(name) for name in LIBRARIES]
    handlers = [logger.handlers for logger in loggers]

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        file: TextIO | None = None, line: str | None = None,
    ) -> None:  # fmt: skip
        if LIBRARIES.isdisjoint(Path(filename).parts):
            shown(message, category, filename, lineno, file, line)
        else:
            log.info("%s: %s", category.__name__, message)

    warnings.showwarning = show
    for logger in loggers:
        logger.handlers = [_Forward(log)]
    try:
        yield
    finally:
        warnings.showwarning = shown
        for logger, own in zip(loggers, handlers, strict=True):
            logger.handlers = own


class _Forward(logging.Handler):
    """Writes the records of another logger to `log`, as information."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.info("%s: %s", record.name, record.getMessage())


class _Short(logging.Formatter):
    """One line per record; the traceback is in the file."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname.lower()}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        return mask(f"{line} ({error})" if error else line)
