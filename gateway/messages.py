"""The alarm clock: two kinds of message, "there is work" and "a repair is yours". What the work is stands elsewhere.

Losing a message, or getting it twice, changes nothing: a worker that wakes up looks for itself, and every worker looks
now and then without being woken; a repair of which nothing is heard is given out again (`gateway.repair_watch`).
"""

from __future__ import annotations

import logging

from celery import Celery
from kombu.exceptions import OperationalError

from shared.celery_app import open_celery as open_celery
from shared.logging import request_id
from shared.schemas.repairs import QUEUE, REPAIR, Grant

WORK = "contrafact.work"

logger = logging.getLogger("contrafact.messages")


def wake_worker(celery: Celery) -> None:
    """Say that there is work; call it after the commit. A dead broker only means that the work starts later."""
    try:
        celery.send_task(WORK, retry=False, ignore_result=True, headers={"request_id": request_id()})
    except OperationalError as error:
        logger.warning("no wake-up could be sent; workers look for themselves soon: %s", error)


def send_repair(celery: Celery, grant: Grant) -> None:
    """Tell a trainer of a repair. A dead broker only means that it is told later."""
    try:
        celery.send_task(REPAIR, args=[grant.model_dump(mode="json")], queue=QUEUE, retry=False, ignore_result=True)
    except OperationalError as error:
        logger.warning("no trainer could be told of repair %s; it will be given out again: %s", grant.repair, error)
