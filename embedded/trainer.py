"""Run the trainer of repairs in this process: Celery's thread queues the leases, a separate thread works on them.

A long training therefore does not delay source images. The first lease imports torch and the trainer's code.
"""

from __future__ import annotations

import importlib
import logging
import queue
import threading
from typing import Any

from celery import Celery

from shared.media.storage import ObjectStore
from shared.package import module as own_module
from shared.problems import DependencyFailed
from shared.schemas.repairs import REPAIR, RepairLease

STOP_SECONDS = 30.0
# Of decoded images. More hardly helps: an arm reads most images once or twice, and every arm is judged on all in turn.
CACHED_BYTES = 256 * 1024**2

logger = logging.getLogger("contrafact.trainer")


class TrainerThread:
    """Listens on a Celery app; `stop` ends the training at its next step."""

    def __init__(self, celery: Celery, store: ObjectStore, profile: str) -> None:
        """Register the task; call it before the app's worker starts."""
        self._store, self._profile = store, profile
        self._leases: queue.SimpleQueue[RepairLease | None] = queue.SimpleQueue()
        self._stopping = threading.Event()

        def repair(message: dict[str, Any]) -> None:
            self._leases.put(RepairLease.model_validate(message))

        celery.task(repair, name=REPAIR, ignore_result=True, shared=False)
        self._thread = threading.Thread(target=self._work, name="trainer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the training; its last checkpoint is kept."""
        self._stopping.set()
        self._leases.put(None)
        self._thread.join(STOP_SECONDS)

    def _work(self) -> None:
        while (lease := self._leases.get()) is not None and not self._stopping.is_set():
            module = importlib.import_module(own_module("evaluator_service.repair_worker"))
            settings = module.TrainerSettings()
            most = settings.cached_bytes if "cached_bytes" in settings.model_fields_set else CACHED_BYTES
            trainer = module.Trainer(self._store, self._profile, "auto", stopping=self._stopping, cached_bytes=most)
            try:
                trainer.work(lease)
            except DependencyFailed as error:
                logger.warning("repair %s is released: %s", lease.repair, error)
