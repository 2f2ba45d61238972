"""The Celery app of whoever sends or hears wake-ups: gateway, worker, trainer."""

from __future__ import annotations

from typing import Any

from celery import Celery

# A Redis that says nothing must not hold up requests and steps for long: losing a message changes nothing.
REDIS_OPTIONS = {"socket_connect_timeout": 2, "socket_timeout": 5}


def open_celery(broker_url: str) -> Celery:
    """A Celery app on a broker. Connects only when it is used."""
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
