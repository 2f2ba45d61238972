"""Run Celery's worker in a thread of this process, on the in-memory broker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Celery
from celery.concurrency.thread import TaskPool
from celery.worker import WorkController

from shared.schemas.repairs import QUEUE

START_SECONDS = 30.0


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
