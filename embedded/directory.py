"""The data directory of an embedded system, and the lock that keeps a second process out."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.operations.data_directory import LOCK


class DirectoryInUse(Exception):
    """Another process works in the directory."""


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Lock the directory for this process; create it if needed. Raises DirectoryInUse.

    The operating system drops the lock when the process ends, even after a crash.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise DirectoryInUse(
                f"another Contrafact (process {holder}) works in {directory}; stop it, or name another directory"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
