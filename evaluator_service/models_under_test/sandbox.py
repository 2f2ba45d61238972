"""One uploaded model in a process of its own, from the evaluator's side: start, load, run, end.

The process has no access to the evaluator's memory, keys or connections, and limits on memory and time. Whatever it
answers is checked: it may have been taken over by its model.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluator_service.models_under_test.messages import Batch, Limits, Load, Ready, Reply, receive, receive_array, send
from shared.images import Pixels
from shared.problems import DependencyFailed, DeviceFailed, InvalidInput, ModelStopped, OutOfMemory, Problem
from shared.schemas.base import Kind

MODULE = "evaluator_service.models_under_test.child"
START_SECONDS = 300.0  # imports alone: no model is involved
GRACE_SECONDS = 5.0  # beyond the process's own time limit
MEMORY_SETTING = "CONTRAFACT_UPLOAD_MEMORY_MIB"
LOAD_SETTING = "CONTRAFACT_UPLOAD_LOAD_SECONDS"
BATCH_SETTING = "CONTRAFACT_UPLOAD_BATCH_SECONDS"
# Secrets of the evaluator (keys of endpoints) stay out of the process.
_PASSED = {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD"}
_PASSED_PREFIXES = (
    "OMP_",
    "MKL_",
    "KMP_",
    "ONEDNN_",
    "DNNL_",
    "ATEN_",
    "CUDA_",
    "NVIDIA_",
    "HIP_",
    "ROCR_",
    "PYTORCH_",
)

logger = logging.getLogger("contrafact.service")


class Sandbox:
    """The process of one model. One call at a time; once `ended`, every call raises."""

    def __init__(self, limits: Limits) -> None:
        """Start the process. Raises DependencyFailed if it does not start."""
        self.kind: Kind = "classification"
        self.classes: list[str] = []
        self.limits = limits
        self._connection, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(other.fileno()), limits.model_dump_json()],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=_environment(os.environ),
                start_new_session=True,
            )
        try:
            receive(self._connection, Ready, time.monotonic() + START_SECONDS)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise DependencyFailed(f"the process for an uploaded model did not start: {error!r}") from error

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def load(self, folder: Path) -> None:
        """Load and try the model in a folder, which may be deleted afterwards.

        Raises InvalidInput if it is refused, ModelStopped if it breaks a limit or ends its process, and DeviceFailed.
        """
        until = time.monotonic() + self.limits.load_seconds + GRACE_SECONDS
        try:
            send(self._connection, Load(folder=str(folder)))
            reply = receive(self._connection, Reply, until)
        except (OSError, EOFError, ValueError) as error:
            raise self._stopped("while it was loaded and tried", LOAD_SETTING, error) from error
        if reply.failure == "memory":
            raise self._too_large(reply, f"{self.limits.max_batch} images at a time")
        if reply.failure:
            raise self._problem(reply)
        self.kind, self.classes = reply.kind, reply.classes

    def run(self, images: Sequence[Pixels]) -> list[NDArray[np.generic]]:
        """Probabilities, or the label map, of each image (height × width × 3).

        Raises as `load` does, and OutOfMemory if fewer images may fit.
        """
        until = time.monotonic() + self.limits.batch_seconds + GRACE_SECONDS
        try:
            self._connection.settimeout(self.limits.batch_seconds + GRACE_SECONDS)
            send(self._connection, Batch(sizes=[image.shape[:2] for image in images]), images)
            reply = receive(self._connection, Reply, until)
            outputs = [] if reply.failure else self._receive_outputs(images, until)
        except (OSError, EOFError, ValueError) as error:
            raise self._stopped(f"on {len(images)} images", BATCH_SETTING, error) from error
        if reply.failure == "memory":
            if len(images) > 1 and not self.limits.deterministic:
                raise OutOfMemory(f"the model needs too much memory for {len(images)} images at once")
            raise self._too_large(reply, f"{len(images)} images at a time")
        if reply.failure:
            raise self._problem(reply)
        return outputs

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive_outputs(self, images: Sequence[Pixels], until: float) -> list[NDArray[np.generic]]:
        """Raises ValueError for outputs that no model of this kind has."""
        if self.kind == "segmentation":
            maps = [receive_array(self._connection, image.shape[:2], np.uint8, until) for image in images]
            if any(int(array.max(initial=0)) >= len(self.classes) for array in maps):  # type: ignore[arg-type]
                raise ValueError("a label map with unknown classes")
            return maps
        rows = receive_array(self._connection, (len(images), len(self.classes)), np.float64, until)
        if not np.isfinite(rows.astype(np.float64)).all():
            raise ValueError("probabilities that are not finite")
        return list(rows)

    def _stopped(self, doing: str, time_setting: str, error: Exception) -> ModelStopped:
        """Why the process ended; it is ended now if it has not."""
        self.close()
        limits, status = self.limits, self._process.returncode
        logger.warning("the process of an uploaded model ended %s: status %s, %r", doing, status, error)
        if isinstance(error, TimeoutError) or status == -signal.SIGALRM:
            seconds = limits.load_seconds if time_setting == LOAD_SETTING else limits.batch_seconds
            return ModelStopped(
                f"the model took longer than {seconds:g} s {doing}; the operator's limit is {time_setting}",
                members={"setting": time_setting},
            )
        ending = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return ModelStopped(
            f"the model ended its process {doing} ({ending}); it may use {limits.memory_mib:,} MiB of memory "
            f"({MEMORY_SETTING})",
            members={"setting": MEMORY_SETTING},
        )

    def _problem(self, reply: Reply) -> Problem:
        if reply.failure == "device":
            self.close()  # nothing else succeeds in a process after such an error
            return DeviceFailed(f"the accelerator failed in the process of an uploaded model: {reply.detail}")
        return InvalidInput(reply.detail)

    def _too_large(self, reply: Reply, load: str) -> ModelStopped:
        return ModelStopped(
            f"the model needs more than {self.limits.memory_mib:,} MiB of memory for {load}; the operator's limit is "
            f"{MEMORY_SETTING}: {reply.detail}",
            members={"setting": MEMORY_SETTING},
        )


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """What the process needs of an environment; libraries are found where this process finds them, and offline."""
    kept = {name: value for name, value in given.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**kept, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
