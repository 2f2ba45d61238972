"""Celery messages of two kinds: "there is work" and "train this repair". The work itself is in the database.

Losing a message, or receiving it twice, changes nothing. A worker that wakes up queries the database, and every worker
polls it regularly. A repair without a heartbeat is sent again (`gateway.repairs.dispatch`).
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery

from gateway.metrics import MESSAGES
from shared.logging import request_id
from shared.schemas.repairs import QUEUE, REPAIR, RepairLease

WORK = "contrafact.work"

logger = logging.getLogger("contrafact.messages")


def wake_worker(celery: Celery) -> None:
    """Wake a worker; call it after the commit. Raises nothing: without a message the work starts later."""
    lost = "the wake-up message was not sent; workers will find the work when they next poll"
    _send(celery, WORK, lost, headers={"request_id": request_id()})


def send_repair(celery: Celery, grant: RepairLease) -> None:
    """Send a repair to a trainer. Raises nothing: a lost message is sent again later."""
    lost = f"no trainer could be told of repair {grant.repair}; it will be sent again"
    _send(celery, REPAIR, lost, args=[grant.model_dump(mode="json")], queue=QUEUE)


def _send(celery: Celery, task: str, lost: str, **options: Any) -> None:
    """Send a message and count it. Its subject is committed already, so broker errors are logged and not raised."""
    try:
        celery.send_task(task, retry=False, ignore_result=True, **options)
    except Exception as error:  # errors of kombu and redis, and any error of a wrong address
        MESSAGES.labels(task, "lost").inc()
        logger.warning("%s: %s", lost, error)
    else:
        MESSAGES.labels(task, "sent").inc()
