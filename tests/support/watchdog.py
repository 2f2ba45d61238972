"""Ends a daemon with the test run that started it, however that ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_WATCH = 'cat; kill -QUIT "$0"; sleep 1; rm -rf "$1"'  # the shell's input ends with the process that holds its pipe


@contextmanager
def ended_with_this_process(pid: int, directory: str) -> Iterator[None]:
    """If this process ends within the block, by any signal, process `pid` gets SIGQUIT and `directory` is removed."""
    command = ["sh", "-c", _WATCH, str(pid), directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as watch:  # no signal of ours
        try:
            yield
        finally:
            watch.kill()
