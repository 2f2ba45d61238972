"""One uploaded model in a process of its own, from the evaluator's side: start, load, run, end.

The process has no access to the evaluator's memory, keys or connections, and limits on memory and time. Its
replies are validated, because the model may control the process. It is forked from a process that has already imported
the (slow) libraries:

    evaluator ──► spawner (started at the first upload; imports, loads nothing) ──fork──► one process per model
        ▲                └── exit code of each process, which only its parent learns ◄─────────────┘
        └──────────────────────┘

The evaluator itself is not forked: it has threads, secrets, and perhaps a GPU.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from numpy.typing import NDArray

from evaluator_service.models_under_test.kinds import KINDS
from evaluator_service.models_under_test.messages import Batch, Limits, Load, Ready, Reply, receive, receive_array, send
from evaluator_service.models_under_test.outputs import finite
from shared.media.images import Pixels
from shared.package import module
from shared.problems import DependencyFailed, DeviceFailed, InvalidInput, ModelStopped, NotFinite, OutOfMemory, Problem
from shared.schemas.base import DEFAULT_KIND, Kind

START_SECONDS = 300.0  # for imports only; no model is loaded yet
_EXIT_CODE_BYTES = 8
GRACE_SECONDS = 5.0  # after the process's own time limit
MEMORY_SETTING = "CONTRAFACT_UPLOAD_MEMORY_MIB"
LOAD_SETTING = "CONTRAFACT_UPLOAD_LOAD_SECONDS"
BATCH_SETTING = "CONTRAFACT_UPLOAD_BATCH_SECONDS"
MODULE = module("evaluator_service.models_under_test.child")
# Variables that the processes get; secrets of the evaluator (keys of endpoints) are not among them.
_PASSED = {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD"}
_PASSED_PREFIXES = ("OMP_", "MKL_", "KMP_", "ONEDNN_", "DNNL_", "ATEN_", "CUDA_", "NVIDIA_", "ROCR_", "PYTORCH_")
_PR_SET_DUMPABLE = 4

End = TypeVar("End", socket.socket, int)
logger = logging.getLogger("contrafact.service")


def hide_process() -> None:
    """Keep the memory and the environment of this process from others of its user, such as those of uploads (Linux).

    It also leaves no core dump, and only root can attach a debugger.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class ProcessKilled(DependencyFailed):
    """The process of a model was killed from outside (SIGKILL), for example by the kernel when memory ran out."""


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


class Sandbox:
    """The process of one model. One call at a time; once `ended`, every call raises."""

    def __init__(self, spawner: Spawner, limits: Limits) -> None:
        """Start the process. Raises DependencyFailed if it does not start."""
        self.kind: Kind = DEFAULT_KIND
        self.classes: list[str] = []
        self.limits = limits
        with ExitStack() as cleanup:
            try:
                connections = spawner.connect()
                self._connection = cleanup.enter_context(connections.messages)
                self._exit_code = cleanup.enter_context(connections.exit_code)
                send(self._connection, limits)
                self.pid = receive(self._connection, Ready, time.monotonic() + START_SECONDS).pid
            except (OSError, EOFError, ValueError) as error:
                raise DependencyFailed(f"the process for an uploaded model did not start: {error!r}") from error
            cleanup.pop_all()
        self._probe = self._connection.dup()
        self._probe.setblocking(False)

    @property
    def ended(self) -> bool:
        """Whether the process has ended: only it holds the other end of the connection."""
        try:
            return not self._probe.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def load(self, folder: Path) -> None:
        """Load and try the model in a folder, which may be deleted afterwards.

        Raises InvalidInput if the model is refused, ModelStopped if it breaks a limit or ends its process,
        ProcessKilled if the process is killed from outside, and DeviceFailed.
        """
        with suppress(OSError):  # the process has ended, which `_step` reports
            send(self._connection, Load(folder=str(folder)))
        loaded = self._step("while it was loaded", LOAD_SETTING, self.limits.load_seconds)
        # The trial has a batch's time limit, so a model that passes it also completes its first images.
        self._step(f"on {self.limits.max_batch} small images", BATCH_SETTING, self.limits.batch_seconds)
        self.kind, self.classes = loaded.kind, loaded.classes

    def run(self, images: Sequence[Pixels]) -> list[NDArray[Any] | NotFinite]:
        """The answer for each image (height × width × 3); NotFinite for NaN or infinity.

        Raises as `load` does, OutOfMemory if fewer images may fit, and NotFinite if the model itself refuses an output
        that is not finite.
        """
        until = time.monotonic() + self.limits.batch_seconds + GRACE_SECONDS
        try:
            self._connection.settimeout(self.limits.batch_seconds + GRACE_SECONDS)
            send(self._connection, Batch(sizes=[image.shape[:2] for image in images]), images)
            reply = receive(self._connection, Reply, until)
            outputs = [] if reply.failure else self._receive_outputs(images, until)
        except (OSError, EOFError, ValueError) as error:
            raise self._stop_error(f"on {_describe(images)}", BATCH_SETTING, until, error) from error
        if reply.failure == "memory":
            if len(images) > 1 and not self.limits.deterministic:
                raise OutOfMemory(f"the model needs too much memory for {len(images)} images at once")
            raise self._too_large(reply, _describe(images))
        if reply.failure:
            raise self._problem(reply)
        return outputs

    def _step(self, doing: str, time_setting: str, seconds: float) -> Reply:
        """The reply to a step of loading. Raises as `load` does."""
        until = time.monotonic() + seconds + GRACE_SECONDS
        try:
            reply = receive(self._connection, Reply, until)
        except (OSError, EOFError, ValueError) as error:
            raise self._stop_error(doing, time_setting, until, error) from error
        if reply.failure == "memory":
            raise self._too_large(reply, f"{self.limits.max_batch} small images at a time")
        if reply.failure:
            raise self._problem(reply)
        return reply

    def close(self) -> None:
        """End the process."""
        if not self.ended:  # otherwise another process may have its id
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        for connection in (self._probe, self._connection, self._exit_code):
            connection.close()

    def _receive_outputs(self, images: Sequence[Pixels], until: float) -> list[NDArray[Any] | NotFinite]:
        """Raises ValueError for outputs that no model of this kind has."""
        read = partial(receive_array, self._connection, until=until)
        return finite(KINDS[self.kind].receive(images, len(self.classes), read))

    def _stop_error(
        self, doing: str, time_setting: str, until: float, error: Exception
    ) -> ModelStopped | ProcessKilled:
        """Return why the process ended, and end it if it still runs."""
        killed = isinstance(error, EOFError | ConnectionError) and self._was_killed()
        logger.warning("process %d of an uploaded model ended %s: %r", self.pid, doing, error)
        self.close()
        limits = self.limits
        if killed:
            return ProcessKilled(
                f"the process of the model was killed from outside {doing}; if memory ran out, the operator must lower "
                f"{MEMORY_SETTING} ({limits.memory_mib:,}) or give the evaluator more memory"
            )
        if time.monotonic() >= until - GRACE_SECONDS:
            seconds = limits.load_seconds if time_setting == LOAD_SETTING else limits.batch_seconds
            return ModelStopped(
                f"the model took longer than {seconds:g} s {doing}; the operator's limit is {time_setting}",
                members={"setting": time_setting},
            )
        return ModelStopped(
            f"the model ended its process {doing}; it may use {limits.memory_mib:,} MiB of memory ({MEMORY_SETTING})",
            members={"setting": MEMORY_SETTING},
        )

    def _was_killed(self) -> bool:
        """Whether the process was killed from outside; also true if the spawner, which reports exit codes, is gone."""
        self._exit_code.settimeout(GRACE_SECONDS)
        try:
            code = self._exit_code.recv(_EXIT_CODE_BYTES)
        except TimeoutError:  # the process only closed its connection
            return False
        except OSError:
            return True
        return not code or int(code) == -signal.SIGKILL

    def _problem(self, reply: Reply) -> Problem:
        if reply.failure == "device":
            self.close()  # every later call of the process would fail too
            return DeviceFailed(f"the accelerator failed in the process of an uploaded model: {reply.detail}")
        return (NotFinite if reply.failure == "not finite" else InvalidInput)(reply.detail)

    def _too_large(self, reply: Reply, load: str) -> ModelStopped:
        self.close()  # it is quarantined, so release its memory
        return ModelStopped(
            f"the model needs more than {self.limits.memory_mib:,} MiB of memory for {load}; the operator's limit is "
            f"{MEMORY_SETTING}: {reply.detail}",
            members={"setting": MEMORY_SETTING},
        )


def _describe(images: Sequence[Pixels]) -> str:
    """Number and size of images, in words."""
    height, width = (max(image.shape[side] for image in images) for side in (0, 1))
    size = f"{width:,} × {height:,} pixels"
    return f"an image of {size}" if len(images) == 1 else f"{len(images)} images at a time, of up to {size}"
