"""JSON logging of every service, one object per line.

A line carries the fields bound to its thread or task (`bound`): the id of the HTTP request and, in the worker, the job
and source image. The request id travels in the header `X-Request-ID` from the gateway through Celery's message to the
worker and on to the model services. Text that looks like a secret is masked before it is written.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, Any

from pythonjsonlogger.core import RESERVED_ATTRS, BaseJsonFormatter

ROOT = "contrafact"
REQUEST_ID_HEADER = "X-Request-ID"
_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECRETS = re.compile(
    r"\bcf_[A-Za-z0-9_-]{8,}"  # API keys
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"  # user and password in an address
    r"|(?i:(?<=\bBearer )|(?<=\bBasic ))[A-Za-z0-9+/._=-]{8,}"
)
_bound: ContextVar[dict[str, str]] = ContextVar("bound", default={})  # noqa: B039  # replaced, never changed


class JsonFormatter(BaseJsonFormatter):
    """Formats time (UTC), level, logger, message, bound fields, the fields given as `extra`, and the traceback."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03d+00:00"

    def __init__(self) -> None:
        super().__init__(
            ("asctime", "levelname", "name", "message"),
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger", "exc_info": "traceback"},
            reserved_attrs=[*RESERVED_ATTRS, "color_message"],  # uvicorn's copy of the message with terminal codes
        )

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        return {**_bound.get(), **log_data, "level": log_data["level"].lower()}

    def jsonify_log_record(self, log_data: dict[str, Any]) -> str:
        return mask(json.dumps(log_data, default=str))


def configure(level: str = "INFO", stream: IO[str] | None = None) -> None:
    """Send the project's log lines, and the warnings of libraries, to `stream` (default: standard error) as JSON.

    The first call in a process takes effect. uvicorn's own access log is switched off, because
    `shared.service.asgi.AccessLog` replaces it.
    """
    project_logger, root_logger = logging.getLogger(ROOT), logging.getLogger()
    if any(
        isinstance(handler.formatter, JsonFormatter) for handler in (*project_logger.handlers, *root_logger.handlers)
    ):
        return
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root_logger.addHandler(handler)
    project_logger.setLevel(level)
    server = logging.getLogger("uvicorn")
    server.handlers.clear()
    server.propagate = True
    logging.getLogger("uvicorn.access").handlers.clear()


def bind(**fields: str) -> None:
    """Add fields to every later log line of this task; for the outermost code that serves a request."""
    _bound.set({**_bound.get(), **fields})


@contextmanager
def bound(**fields: str) -> Iterator[None]:
    """Add fields to every log line of this thread or task within the block; they replace fields of the same name."""
    token = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


def request_id() -> str:
    """The id of the HTTP request that is being served, or that caused the current work; else empty."""
    return _bound.get().get("request_id", "")


def request_id_from(header: str | None) -> str:
    """Return the caller's id if it is a short plain word (it cannot forge log lines), otherwise a new one."""
    return header if header and _WELL_FORMED.fullmatch(header) else secrets.token_hex(8)


def mask(text: str) -> str:
    """Return the text without API keys, bearer tokens and passwords in URLs."""
    return _SECRETS.sub("***", text)
