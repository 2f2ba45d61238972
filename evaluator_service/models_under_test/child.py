"""The processes of uploaded models, forked from a process that has imported the libraries (`sandbox`).

    python -m evaluator_service.models_under_test.child FILE_DESCRIPTOR

Each loads its model, tries it, and answers batches until the evaluator closes the connection. The kernel enforces the
limits, also inside compiled code: RLIMIT_DATA bounds the private memory, and SIGALRM, which has no handler, ends the
process when a load or a batch takes too long.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from evaluator_service.models_under_test.kinds import Answer, LoadedModel
from evaluator_service.models_under_test.loading import load_folder, try_out
from evaluator_service.models_under_test.messages import Batch, Limits, Load, Ready, Reply, receive, receive_array, send
from evaluator_service.models_under_test.onnx_file import TensorBound
from evaluator_service.models_under_test.sandbox import Connections
from shared.media.images import Pixels
from shared.problems import NotFinite, Problem
from shared.service import logging as json_logging
from shared.service.device_errors import is_device_failure, is_out_of_memory

MEBIBYTE = 1024**2
MAX_DETAIL = 1000
_KILLED_FIRST = "1000"  # the kernel kills this process first if memory runs out


def main() -> None:
    """Fork a process for each connection that arrives at the socket whose file descriptor is the argument."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # sent to the evaluator, which ends these processes itself
        signal.signal(ending, signal.SIG_IGN)
    exit_codes: dict[int, int] = {}  # file descriptors by process
    signal.signal(signal.SIGCHLD, lambda *_: _report_ended(exit_codes))
    json_logging.configure()
    disable_progress_bar()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        while True:
            byte, descriptors, _, _ = socket.recv_fds(control, 1, len(Connections._fields))
            if not byte:
                return
            _fork(control, Connections(*descriptors), exit_codes)


def _fork(control: socket.socket, descriptors: Connections[int], exit_codes: dict[int, int]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # the process may end before it is in `exit_codes`
    pid = os.fork()
    if pid == 0:
        control.close()
        for descriptor in (descriptors.exit_code, *exit_codes.values()):
            os.close(descriptor)
        _serve(descriptors.messages)
    exit_codes[pid] = descriptors.exit_code
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os.close(descriptors.messages)


def _report_ended(exit_codes: dict[int, int]) -> None:
    """Send the exit code of each process that has ended, negative for a signal, and forget the process."""
    for pid, descriptor in list(exit_codes.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del exit_codes[pid]
            with suppress(OSError):  # the receiver is gone
                os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(descriptor)


def _serve(descriptor: int) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        with socket.socket(fileno=descriptor) as connection, suppress(EOFError, ConnectionError):
            _answer(connection)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _answer(connection: socket.socket) -> None:
    limits = receive(connection, Limits)
    _apply(limits)
    send(connection, Ready(pid=os.getpid()))
    folder = Path(receive(connection, Load).folder)
    with _time_limit(limits.load_seconds):
        model, reply = _load(folder, limits)
    send(connection, reply)
    if model is None:
        return
    with _time_limit(limits.batch_seconds):
        reply = _try_out(model, limits.max_batch)
    send(connection, reply)
    while not reply.failure:
        sizes = receive(connection, Batch).sizes
        images = [receive_array(connection, (*size, 3), np.uint8) for size in sizes]
        with _time_limit(limits.batch_seconds):
            answer, outputs = _outputs(model, images)
        send(connection, answer, outputs)


def _apply(limits: Limits) -> None:
    torch.set_num_threads(limits.threads)
    torch.backends.cudnn.deterministic = limits.deterministic
    torch.backends.cudnn.allow_tf32 = False  # as in `plain_float_32`
    with suppress(OSError):  # not every system has it
        Path("/proc/self/oom_score_adj").write_text(_KILLED_FIRST)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = limits.memory_mib * MEBIBYTE
    if limits.device.startswith("cuda"):
        device = torch.device(limits.device).index or 0
        share = most / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
    else:  # CUDA maps far more than it uses
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _load(folder: Path, limits: Limits) -> tuple[LoadedModel | None, Reply]:
    try:
        bound = TensorBound(limits.max_batch, limits.memory_mib * MEBIBYTE)
        model = load_folder(folder, device=limits.device, bound=bound)
    except Exception as error:
        return None, _failure(error)
    return model, Reply(kind=model.kind, classes=model.classes)


def _try_out(model: LoadedModel, images: int) -> Reply:
    try:
        try_out(model, images)
    except Exception as error:
        return _failure(error)
    return Reply()


def _outputs(model: LoadedModel, images: Sequence[Pixels]) -> tuple[Reply, list[Answer]]:
    try:
        return Reply(), list(model.run(images))
    except Exception as error:
        return _failure(error), []


def _failure(error: Exception) -> Reply:
    """Describe a failure by the first error in its chain of causes that can be classified."""
    detail = error.detail if isinstance(error, Problem) else f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, NotFinite):
        return Reply(failure="not finite", detail=detail[:MAX_DETAIL])
    cause: BaseException | None = error
    while cause is not None:
        if is_out_of_memory(cause) or "bad_alloc" in str(cause):
            return Reply(failure="memory", detail=detail[:MAX_DETAIL])
        if is_device_failure(cause):
            return Reply(failure="device", detail=detail[:MAX_DETAIL])
        cause = cause.__cause__
    return Reply(failure="refused", detail=detail[:MAX_DETAIL])


if __name__ == "__main__":
    main()
