"""The alarm clock: two kinds of message, "there is work" and "a repair is yours". What the work is stands elsewhere.

Losing a message, or getting it twice, changes nothing: a worker that wakes up looks for itself, and every worker looks
now and then without being woken; a repair of which nothing is heard is given out again (`gateway.repairs.dispatch`).
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery

from gateway.metrics import MESSAGES
from shared.celery_app import broker_fault as broker_fault
from shared.celery_app import open_celery as open_celery
from shared.logging import request_id
from shared.schemas.repairs import QUEUE, REPAIR, RepairLease

WORK = "contrafact.work"

logger = logging.getLogger("contrafact.messages")


def wake_worker(celery: Celery) -> None:
    """Say that there is work; call it after the commit. Raises nothing: without a message the work starts later."""
    lost = "no wake-up could be sent; workers look for themselves soon"
    _send(celery, WORK, lost, headers={"request_id": request_id()})


def send_repair(celery: Celery, grant: RepairLease) -> None:
    """Tell a trainer of a repair. Raises nothing: without a message it is told later."""
    lost = f"no trainer could be told of repair {grant.repair}; it will be given out again"
    _send(celery, REPAIR, lost, args=[grant.model_dump(mode="json")], queue=QUEUE)


def _send(celery: Celery, task: str, lost: str, **options: Any) -> None:
    """Send a message, and count it. What it is about is committed, so no fault of broker or client is the caller's."""
    try:
        celery.send_task(task, retry=False, ignore_result=True, **options)
    except Exception as error:  # kombu's and redis' own errors, and whatever a wrong address makes them raise
        MESSAGES.labels(task, "lost").inc()
        logger.warning("%s: %s", lost, error)
    else:
        MESSAGES.labels(task, "sent").inc()
