"""Logging of an embedded system: everything into a file in its directory, warnings to the terminal."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from shared.logging import ROOT, JsonFormatter, mask

LIBRARIES = frozenset({"transformers", "diffusers", "huggingface_hub", "sklearn", "torch", "torchvision", "timm"})


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


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Send what LIBRARIES warn of to the project's log instead of standard error while the block runs.

    Warnings of other code, such as the caller's, are shown as ever.
    """
    log = logging.getLogger(f"{ROOT}.libraries")
    shown, loggers = warnings.showwarning, [logging.getLogger(name) for name in LIBRARIES]
    handlers = [logger.handlers for logger in loggers]

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        file: TextIO | None = None, line: str | None = None,
    ) -> None:  # fmt: skip
        if LIBRARIES.isdisjoint(Path(filename).parts):
            shown(message, category, filename, lineno, file, line)
        else:
            log.info("%s: %s", category.__name__, message)

    warnings.showwarning = show
    for logger in loggers:
        logger.handlers = [_Forward(log)]
    try:
        yield
    finally:
        warnings.showwarning = shown
        for logger, own in zip(loggers, handlers, strict=True):
            logger.handlers = own


class _Forward(logging.Handler):
    """Writes the records of another logger to `log`, as information."""

    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.info("%s: %s", record.name, record.getMessage())


class _Short(logging.Formatter):
    """One line per record; the traceback is in the file."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname.lower()}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        return mask(f"{line} ({error})" if error else line)
