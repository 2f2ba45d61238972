"""Start processes for uploaded models by forking a process that has already imported the (slow) libraries.

    evaluator ──► spawner (started at the first upload; imports, loads nothing) ──fork──► one process per model
        ▲                └── exit code of each process, which only its parent learns ◄─────────────┘
        └──────────────────────┘

The evaluator itself is not forked: it has threads, secrets, and perhaps a GPU.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Generic, NamedTuple, TypeVar

from shared.package import module

MODULE = module("evaluator_service.models_under_test.child")
# Variables that the processes get; secrets of the evaluator (keys of endpoints) are not among them.
_PASSED = {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD"}
_PASSED_PREFIXES = ("OMP_", "MKL_", "KMP_", "ONEDNN_", "DNNL_", "ATEN_", "CUDA_", "NVIDIA_", "ROCR_", "PYTORCH_")

_PR_SET_DUMPABLE = 4

End = TypeVar("End", socket.socket, int)


def hide_process() -> None:
    """Keep the memory and the environment of this process from others of its user, such as those of uploads (Linux).

    It also leaves no core dump, and only root can attach a debugger.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class Connections(NamedTuple, Generic[End]):
    """A process's connections: `messages` with it; on `exit_code` the spawner sends its exit code when it has ended."""

    messages: End
    exit_code: End


class Spawner:
    """Owns the process that is forked; thread-safe."""

    def __init__(self) -> None:
        self._using = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self) -> Connections[socket.socket]:
        """The connections of a new process. Raises OSError."""
        with ExitStack() as child_sockets, ExitStack() as own_sockets:
            pairs = [socket.socketpair() for _ in Connections._fields]
            for own_end, child_end in pairs:
                own_sockets.enter_context(own_end)
                child_sockets.enter_context(child_end)
            with self._using:
                socket.send_fds(self._running(), [b"."], [child_end.fileno() for _, child_end in pairs])
            own_sockets.pop_all()
        return Connections(*(own_end for own_end, _ in pairs))

    def close(self) -> None:
        """End the process that is forked; the models' processes end with their connections."""
        with self._using:
            self._stop()

    def _running(self) -> socket.socket:
        if self._control is None or self._process is None or self._process.poll() is not None:
            self._stop()
            self._control, child_end = socket.socketpair()
            with child_end:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", MODULE, str(child_end.fileno())],
                    pass_fds=[child_end.fileno()],
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


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the processes: the variables they need, this process's import path, and no network."""
    passed = {
        name: value for name, value in environment.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    # NumPy must not start threads, because a process with threads cannot be forked safely.
    return {"OPENBLAS_NUM_THREADS": "1", **passed, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
