"""Run the whole system in one process: the deployed apps, worker and methods over SQLite and a directory.

Threads serve gateway and model services on loopback ports. Celery's worker is a thread on an in-memory broker. Two
batches are computed at a time, for the oldest source images first (`shared.turns`). The gateway answers at once; steps
wait until the services are loaded. After a restart on the same directory, even after a crash, unfinished jobs resume.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from celery import Celery
from fastapi import FastAPI
from sqlalchemy import Engine

from embedded.celery_thread import CeleryThread
from embedded.directory import lock
from embedded.failed_service import failed_service
from embedded.local_callers import LocalCallers
from embedded.log import logging_into
from embedded.serving import ListeningPort
from embedded.trainer import TrainerThread
from evaluator_service.models_under_test.in_process import InProcessModel
from gateway.app import create_app
from gateway.context import SERVICE_DEADLINE_SECONDS, SERVICE_WAIT_SECONDS, Context
from gateway.database.sessions import Sessions, migrate, open_engine, open_sessions
from gateway.model_services.clients import ModelServices
from gateway.operations.data_directory import listed_services, stored_in
from gateway.queue import leases
from gateway.queue.celery_tasks import wake_worker
from gateway.repairs import dispatch
from gateway.settings import Settings
from gateway.worker.worker import Worker, register
from shared.celery_app import open_celery
from shared.devices import unused_cuda
from shared.package import module as own_module
from shared.profiles import load_profile
from shared.schemas.service import SERVICES, ServiceName
from shared.service_settings import ServiceSettings
from shared.storage import DirectoryStore
from shared.threads import compute_threads, openmp_threads, usable_cores
from shared.turns import ComputeTurns

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
    Raises `embedded.directory.DirectoryInUse`, `shared.profiles.ProfileError`, and OSError for a port that is taken.
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
        engine = stack.enter_context(_engine(settings.database_url))  # first: if it fails, no thread loads weights
        if service_urls is None:
            configured = _service_settings(profile, deterministic, gateway_port.base_url, directory, drain_seconds)
            service_urls = stack.enter_context(_model_services(configured, in_process, first_start))
        sessions = open_sessions(engine)
        store = DirectoryStore(directory / "objects", gateway_port.base_url)
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
def _engine(url: str) -> Iterator[Engine]:
    engine = open_engine(url)
    migrate(engine)
    with open_sessions(engine).begin() as session:
        leases.expire_leases(session)  # the directory's lock proves that their holders are dead
        dispatch.revoke_leases(session)
    yield engine
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
