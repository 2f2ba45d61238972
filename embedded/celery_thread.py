"""Run Celery's worker in a thread of this process, on the in-memory broker."""

from __future__ import annotations

import threading

from celery import Celery
from celery.worker import WorkController

from shared.schemas.repairs import QUEUE

START_SECONDS = 30.0


class CeleryThread:
    """A running worker with a pool of threads; `stop` ends it once its steps have given up their leases."""

    def __init__(self, celery: Celery, concurrency: int) -> None:
        # Without these two lines, steps are accepted and vanish without a log line.
        celery.finalize()
        celery.set_default()
        ready = threading.Event()
        self._controller = WorkController(
            app=celery,
            pool_cls="threads",
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
