"""The Celery app with which gateway, worker and trainer exchange messages."""

from __future__ import annotations

from typing import Any

from celery import Celery

from shared.service.logging import mask

# A silent or missing Redis must not delay requests and steps for long: losing a message changes nothing.
REDIS_OPTIONS = {"socket_connect_timeout": 2, "socket_timeout": 5, "max_retries": 1, "interval_start": 0}


def open_celery(broker_url: str) -> Celery:
    """Create a Celery app on a broker. It connects when it is first used."""
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


def broker_fault(celery: Celery) -> str:
    """Return why no message can ever be sent or received, as a sentence; "" if there is no fault. Does not connect.

    Celery imports the broker's client with the first message, which is too late to report that it is missing.
    """
    name = mask(str(celery.conf.broker_url))
    if "#" in str(celery.conf.broker_url):  # kombu drops what follows, and connects to another server
        return "CONTRAFACT_BROKER_URL has a # in it; in a password, write %23"
    try:
        celery.connection_for_write().create_transport()
    except (ImportError, AttributeError) as error:  # kombu raises AttributeError if redis is not installed
        return (
            f"the client of the broker {name} cannot be imported ({error}): install the packages of the extra "
            "`gateway`, or of `evaluator` for a trainer, as the images do"
        )
    except (LookupError, ValueError) as error:
        return f"CONTRAFACT_BROKER_URL={name} is not a usable broker URL ({error.args[0]}): give redis://HOST:6379/0"
    return ""
