"""The alarm clock: one kind of message, "there is work". What the work is stands in the database.

Losing a message, or getting it twice, changes nothing: a worker that wakes up looks for itself, and every worker looks
now and then without being woken.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from shared.logging import request_id

WORK = "contrafact.work"
# A Redis that says nothing must not hold up requests and steps for long: losing a message changes nothing.
REDIS_OPTIONS = {"socket_connect_timeout": 2, "socket_timeout": 5}

logger = logging.getLogger("contrafact.messages")


def open_celery(broker_url: str) -> Celery:
    """The Celery app of gateway and worker. Connects only when it is used."""
    celery = Celery("contrafact", broker=broker_url, set_as_current=False)
    options: dict[str, Any] = {"polling_interval": 0.05} if broker_url.startswith("memory:") else dict(REDIS_OPTIONS)
    celery.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_default_queue="contrafact",
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options=options,
    )
    return celery


def wake_worker(celery: Celery) -> None:
    """Say that there is work; call it after the commit. A dead broker only means that the work starts later."""
    try:
        celery.send_task(WORK, retry=False, ignore_result=True, headers={"request_id": request_id()})
    except OperationalError as error:
        logger.warning("no wake-up could be sent; workers look for themselves soon: %s", error)
