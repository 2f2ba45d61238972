"""Logging of an embedded system: everything into a file in its directory, warnings to the terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.logging import ROOT, JsonFormatter, mask


@contextmanager
def logging_into(path: Path) -> Iterator[None]:
    """Append JSON lines of the project's loggers to `path`, and warnings in plain words to standard error."""
    file = logging.FileHandler(path, encoding="utf-8", delay=True)
    file.setFormatter(JsonFormatter())
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.WARNING)
    terminal.setFormatter(_Short())
    logger = logging.getLogger(ROOT)
    logger.setLevel(logging.INFO)
    handlers = (file, terminal)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
        file.close()


class _Short(logging.Formatter):
    """One line per record; the traceback is in the file."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname.lower()}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        return mask(f"{line} ({error})" if error else line)
