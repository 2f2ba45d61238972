"""Celery messages: "there is work" and "train this repair". The work itself is in the database.

A lost or repeated message changes nothing: workers query the database when a message arrives and at regular intervals,
and a repair without a heartbeat is sent again (`gateway.repairs.dispatch`).
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery

from gateway.metrics import MESSAGES
from shared.schemas.repairs import QUEUE, REPAIR, RepairLease
from shared.service.logging import request_id

WORK = "contrafact.work"

logger = logging.getLogger("contrafact.messages")


def wake_worker(celery: Celery) -> None:
    """Wake a worker; call it after the commit. Raises nothing: without a message the work starts later."""
    lost = "the wake-up message was not sent; workers will find the work when they next poll"
    _send(celery, WORK, lost, headers={"request_id": request_id()})


def send_repair(celery: Celery, lease: RepairLease) -> None:
    """Send a repair to a trainer. Raises nothing: a lost message is sent again later."""
    lost = f"the message for repair {lease.repair} was not sent; it will be sent again"
    _send(celery, REPAIR, lost, args=[lease.model_dump(mode="json")], queue=QUEUE)


def _send(celery: Celery, task: str, lost: str, **options: Any) -> None:
    """Send a message and count it. The database has the work already, so broker errors are logged, not raised."""
    try:
        celery.send_task(task, retry=False, ignore_result=True, **options)
    except Exception as error:  # kombu, redis and wrong addresses raise many types
        MESSAGES.labels(task, "lost").inc()
        logger.warning("%s: %s", lost, error)
    else:
        MESSAGES.labels(task, "sent").inc()
