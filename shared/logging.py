"""Log lines as JSON, one object a line, for the `contrafact` logger tree of every service."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import IO

ROOT = "contrafact"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time (UTC), level, logger, message, the fields given as `extra`, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def configure(level: str = "INFO", stream: IO[str] | None = None) -> None:
    """Send the tree's lines to `stream` (standard error by default). The first call in a process decides."""
    root = logging.getLogger(ROOT)
    if any(isinstance(handler.formatter, JsonFormatter) for handler in root.handlers):
        return
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root.addHandler(handler)
    root.setLevel(level)
