"""Starts processes for uploaded models by forking one that has imported their libraries, which takes seconds.

    evaluator ──► spawner (started at the first upload; imports, loads nothing) ──fork──► one process per model
        ▲                └── exit code of each process, which only its parent learns ◄─────────────┘
        └──────────────────────┘

The evaluator itself is not forked: it has threads, secrets, and perhaps a GPU.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Generic, NamedTuple, TypeVar

MODULE = "evaluator_service.models_under_test.child"
# Secrets of the evaluator (keys of endpoints) stay out of the processes.
_PASSED = {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD"}
_PASSED_PREFIXES = ("OMP_", "MKL_", "KMP_", "ONEDNN_", "DNNL_", "ATEN_", "CUDA_", "NVIDIA_", "ROCR_", "PYTORCH_")

End = TypeVar("End", socket.socket, int)


class Connections(NamedTuple, Generic[End]):
    """Of a process: `messages` with itself; `exit_code`, on which the spawner sends its exit code once it has ended."""

    messages: End
    exit_code: End


class Spawner:
    """The process that is forked; thread-safe."""

    def __init__(self) -> None:
        self._using = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self) -> Connections[socket.socket]:
        """The connections of a new process. Raises OSError."""
        with ExitStack() as theirs, ExitStack() as ours:
            pairs = [socket.socketpair() for _ in Connections._fields]
            for own, other in pairs:
                ours.enter_context(own)
                theirs.enter_context(other)
            with self._using:
                socket.send_fds(self._running(), [b"."], [other.fileno() for _, other in pairs])
            ours.pop_all()
        return Connections(*(own for own, _ in pairs))

    def close(self) -> None:
        """End the process that is forked; those of models end with their connections."""
        with self._using:
            self._stop()

    def _running(self) -> socket.socket:
        if self._control is None or self._process is None or self._process.poll() is not None:
            self._stop()
            self._control, other = socket.socketpair()
            with other:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", MODULE, str(other.fileno())],
                    pass_fds=[other.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=_environment(os.environ),
                    start_new_session=True,
                )
        return self._control

    def _stop(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()
        self._control = self._process = None


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """What the processes need of an environment; libraries are found where this process finds them, and offline."""
    kept = {name: value for name, value in given.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    # No threads of NumPy: a process with threads is not to be forked.
    return {"OPENBLAS_NUM_THREADS": "1", **kept, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
