"""The worker: a message wakes it, and it leases source images and analyses until no work is left.

    step          claim → load → call → apply, repeatedly             (`images_in_flight` steps run at a time)
    leases        one thread: renews the leases of the steps until the last has ended; cancels the calls of lost leases
    watch         one thread: sweeps expired leases, and wakes an idle worker when work waits
    housekeeping  one thread: removes unreferenced objects and rows, if no other worker has done so recently
    repairs       one thread: sends repairs to trainers, reads their progress, stores their results

A step that finds work sends one message for the next idle step, so a job of any size needs only a few messages at a
time. `python -m gateway.worker` runs it; `embedded` runs the same code in its own process.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from celery import Celery, bootsteps
from celery.signals import worker_shutting_down
from prometheus_client import CollectorRegistry
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.sessions import DATABASE_AWAY, Sessions, database_now, open_engine, open_sessions
from gateway.database.tables import Job
from gateway.metrics import STEPS
from gateway.model_services.breaker import Breaker, Subject
from gateway.model_services.clients import BrokenOff, Cancelled, ModelServices, is_passing
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.model_services.recurring import RecurringReplies
from gateway.operations.housekeeping import housekeeping_loop
from gateway.operations.startup import database_answers, refuse_wrong_schema
from gateway.queue import leases
from gateway.queue.celery_tasks import WORK, send_repair, wake_worker
from gateway.queue.leases import Lease
from gateway.repairs import dispatch
from gateway.settings import Settings, read_settings
from gateway.storage.object_store import open_store
from gateway.worker import image_step
from gateway.worker.analysis_step import analyse
from gateway.worker.held_leases import HeldLeases, LeaseLost, Stopping
from gateway.worker.originals_step import OriginalsGate
from shared.media.storage import ObjectStore
from shared.problems import NotReady, Problem
from shared.profiles.profile import load_profile
from shared.schemas.jobs import Stage
from shared.service import logging as json_logging
from shared.service.celery_app import broker_fault, open_celery
from shared.service.probes import operations_port
from shared.service.turns import work_started

MAX_PAUSE_SECONDS = 300.0
LINK_GRACE_SECONDS = 60.0
CLOCK_STEP = 60.0  # seconds; what NTP slews, and a slow reply of the database, are less

logger = logging.getLogger("contrafact.worker")


class Worker:
    """State shared by the steps of one worker process: settings, connections and held leases."""

    def __init__(
        self, settings: Settings, sessions: Sessions, store: ObjectStore, services: ModelServices, celery: Celery
    ) -> None:
        """`services.stopping` also stops this worker."""
        self._settings = settings
        self._sessions = sessions
        self._store = store
        self._services = services
        self._celery = celery
        self._breaker = Breaker(settings.pause_seconds, settings.max_hold_seconds)
        self._recurring = RecurringReplies()
        self._originals = OriginalsGate(sessions)
        self._leases = HeldLeases(sessions, settings.lease_seconds, settings.lease_renewal_seconds)
        self._clock = DatabaseClock()
        self._changing = threading.Lock()
        self._steps = 0
        self._stopping = services.stopping
        send, stopping = partial(send_repair, celery), services.stopping
        self._threads = (
            _thread("leases", self._leases.renewal_loop),
            _thread("watch", self._watch),
            _thread("housekeeping", housekeeping_loop, sessions, store, settings, stopping),
            _thread("repairs", dispatch.repair_loop, sessions, store, send, settings, stopping),
        )

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Cancel the calls of the running steps, which then release their leases, and stop the threads."""
        self._stopping.set()
        self._leases.stop()

    def refuse_dead(self) -> None:
        """Raises NotReady when a thread has died."""
        for thread in self._threads:
            if thread.ident is not None and not (thread.is_alive() or self._stopping.is_set()):
                raise NotReady(f"the thread {thread.name!r} of this worker has died; restart the worker")

    def step(self) -> None:
        """Work until nothing can be leased, or `images_per_message` rows are done."""
        with self._count_work():
            for number in range(self._settings.images_per_message):
                if self._stopping.is_set() or not self._work_once(first=number == 0):
                    return

    def _work_once(self, first: bool) -> bool:
        leased = self._claim()
        if leased is None:
            return False
        lease, request_id, leased_at = leased
        bound = json_logging.bound(request_id=request_id, job=lease.job_id, row=lease.id)
        with self._leases.renewing(lease), bound, work_started(leased_at):
            started, outcome = time.monotonic(), "done"
            if first:
                wake_worker(self._celery)
            try:
                if lease.table is Job:
                    self._analyse(lease)
                else:
                    self._work_on_image(lease)
            except Exception as error:  # an error of one image or analysis must not end the step
                outcome = type(error).__name__
                self._settle(lease, error)
            stage = "analysis" if lease.table is Job else "image"
            STEPS.labels(stage, outcome).observe(time.monotonic() - started)
        return True

    def _claim(self) -> tuple[Lease, str, float] | None:
        """A lease, the id of the request that created its job, and the start as Unix time on the database's clock.

        The message may belong to another job. Clocks of workers may differ, so the database's clock counts.
        """
        seconds = self._settings.lease_seconds
        with self._sessions.begin() as session:
            # Analyses first: the report of a small job must not wait for the last image of a large one.
            lease = leases.claim_analysis(session, seconds) or leases.claim(session, seconds)
            if lease is None:
                return None
            request_id = session.scalar(select(Job.request_id).where(Job.id == lease.job_id)) or ""
            return lease, request_id, session.execute(select(database_now())).scalar_one().timestamp()

    def _work_on_image(self, lease: Lease) -> None:
        work = image_step.load(self._sessions, lease)
        if work is None:
            return
        shelf = ImageShelf(self._store, self._sessions, work.owner_id)

        check = partial(self._leases.refuse_ended, lease)

        def note(stage: Stage) -> None:
            with self._sessions.begin() as session:
                leases.note_stage(session, lease, stage)

        subject = Subject(lease.id, work.pixels)
        services = RecordedServices(
            self._services,
            self._sessions,
            shelf,
            work.owner_id,
            check,
            work.digest,
            note,
            self._recurring,
            lambda name: self._breaker.call(name, subject),
        )
        work = self._originals.with_chosen(work, services, shelf, self._link)
        if self._originals.refuses(work, services, shelf, self._link):
            work = replace(work, values=())
        image_result = image_step.call(work, services, shelf, self._link)
        with self._sessions.begin() as session:
            if not image_step.apply(session, lease, work, image_result):
                raise LeaseLost(lease.id)

    def _link(self, key: str) -> str:
        """A URL of an object that stays valid for a whole call, including the wait for a busy service."""
        settings = self._settings
        seconds = settings.service_deadline_seconds + settings.service_wait_seconds + LINK_GRACE_SECONDS
        return self._store.link(key, round(seconds))

    def _analyse(self, lease: Lease) -> None:
        profile = load_profile(self._settings.profile)
        check = partial(self._leases.refuse_ended, lease)
        analyse(self._sessions, self._store, self._services, lease, profile, check)

    def _settle(self, lease: Lease, error: Exception) -> None:
        """Record the error on the leased row."""
        settings = self._settings
        if isinstance(error, LeaseLost) or (isinstance(error, Cancelled) and not self._stopping.is_set()):
            logger.info("lost the lease of %s", lease.id)
            return
        if isinstance(error, DATABASE_AWAY):
            logger.warning("the database failed during %s; its lease will expire: %s", lease.id, error)
            return
        reason = error.detail if isinstance(error, Problem) else f"{type(error).__name__}: {error}"
        with self._sessions.begin() as session:
            if isinstance(error, Stopping) or self._stopping.is_set():
                leases.release(session, lease, "", delay=0)
            elif isinstance(error, BrokenOff):
                leases.record_lost(session, lease, reason, settings.max_lost_leases, settings.pause_seconds)
            elif isinstance(error, Problem) and is_passing(error):
                delay = min(MAX_PAUSE_SECONDS, error.retry_after or settings.pause_seconds)
                leases.release(session, lease, reason, delay)
            else:
                leases.fail(session, lease, reason, settings.max_attempts)
                logger.warning("%s failed", lease.id, exc_info=error)
                return
        logger.info("released %s: %s", lease.id, reason)

    @contextmanager
    def _count_work(self) -> Iterator[None]:
        with self._changing:
            self._steps += 1
        try:
            yield
        finally:
            with self._changing:
                self._steps -= 1

    def _watch(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._settings.sweep_seconds
            try:
                self._sweep()
            except DATABASE_AWAY as error:  # temporary; the thread must go on
                logger.warning("leases are swept late: %s", error)

    def _sweep(self) -> None:
        with self._sessions.begin() as session:
            if self._clock.was_set_back(session):
                logger.warning("the database's clock was set back; delays and leases are dated anew")
                leases.correct_times(session, self._settings.lease_seconds)
                dispatch.correct_times(session)
            leases.sweep(session, self._settings.max_lost_leases)
            waits = leases.work_waits(session)
        if waits and self._steps < self._settings.images_in_flight:
            wake_worker(self._celery)


class DatabaseClock:
    """Compares the database's clock with this process's monotonic one."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ahead: float | None = None

    def was_set_back(self, session: Session) -> bool:
        """Whether it was set back by more than `CLOCK_STEP` seconds since the last call."""
        now = session.scalar(select(database_now()))
        assert now is not None
        ahead, before = now.timestamp() - self._monotonic(), self._ahead
        self._ahead = ahead
        return before is not None and ahead < before - CLOCK_STEP


def _thread(name: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
    return threading.Thread(target=target, args=arguments, name=name, daemon=True)


def register(celery: Celery, worker: Worker) -> None:
    """Register the worker's step as a Celery task, and start and stop the worker with Celery's."""

    def step(task: Any) -> None:
        with json_logging.bound(request_id=str(task.request.get("request_id") or "")):
            logger.debug("woken")
            worker.step()

    celery.task(step, bind=True, name=WORK, ignore_result=True, shared=False)

    class Threads(bootsteps.StartStopStep):  # type: ignore[misc]
        """Celery's hook to start and stop threads with its worker; it runs before the pool waits for its steps."""

        requires = ("celery.worker.components:Pool",)

        def start(self, parent: Any) -> None:
            worker.start()

        def stop(self, parent: Any) -> None:
            worker.stop()

    celery.steps["worker"].add(Threads)
    celery.finalize()


def _obey_second_interrupt(**_: object) -> None:
    """While the worker stops, let Ctrl-C end the process at once; Celery's own handler waits for the running steps."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))


def main() -> None:
    """Run a worker with the environment's settings until it is stopped."""
    json_logging.configure()
    logging.captureWarnings(True)  # such as Celery's warning about running as root
    settings = read_settings()
    celery = open_celery(settings.broker_url)
    if fault := broker_fault(celery):
        raise SystemExit(fault)
    services = ModelServices(
        settings.service_urls, settings.service_deadline_seconds, settings.service_wait_seconds, threading.Event()
    )
    sessions = open_sessions(open_engine(settings.database_url, settings.database_connections))
    refuse_wrong_schema(settings, sessions)
    worker = Worker(settings, sessions, open_store(settings), services, celery)
    register(celery, worker)
    worker_shutting_down.connect(_obey_second_interrupt, weak=False)
    concurrency = str(settings.images_in_flight)
    with ExitStack() as stack:
        if settings.metrics_port:
            ready = partial(database_answers, sessions)
            registry = CollectorRegistry()  # counters of this process are in prometheus_client's default registry
            stack.enter_context(operations_port(settings.metrics_port, worker.refuse_dead, ready, registry))
        celery.worker_main(
            ["--quiet", "worker", "--pool", "threads", "--concurrency", concurrency, "--loglevel", "WARNING"]
        )
