"""A signal is never lost, whenever it arrives; a second one ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys
from embedded.stop_signals import StopSignal

stop_signal, lines = StopSignal(), iter(range(100))

def traced(frame, event, _):
    if event == "line" and next(lines) == {line}:
        sys.settrace(None)
        signal.raise_signal(signal.{name})
    return traced

sys.settrace(traced)
stop_signal.wait()
sys.settrace(None)
print("stopped", flush=True)
{after}
"""


def run(line: int, name: str, after: str = "") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(line=line, name=name, after=after)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_arrives_as_the_wait_begins_ends_it(name: str) -> None:
    """With a `threading.Event`, a signal that arrived inside `Event.wait` was never seen again."""
    ended = run(0, name)
    assert (ended.returncode, ended.stdout) == (0, "stopped\n"), ended.stderr
    assert "Stopping" in ended.stderr


def test_a_second_signal_ends_the_process_at_once() -> None:
    ended = run(0, "SIGINT", "signal.raise_signal(signal.SIGINT)\nprint('still here')")
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGINT, "stopped\n")


UNNOTICED = """
import os, signal, sys, threading, time
from embedded.stop_signals import StopSignal

stop_signal, main, waiting = StopSignal(), threading.get_ident(), StopSignal.wait.__code__

def send():
    while (frame := sys._current_frames()[main]).f_code is not waiting or frame.f_lineno == waiting.co_firstlineno:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)  # the main thread is inside the call that waits

threading.Thread(target=send, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # so the other thread takes the signal
stop_signal.wait()
print("stopped", flush=True)
"""


def test_a_signal_that_does_not_interrupt_the_main_threads_call_ends_the_wait() -> None:
    """It may arrive after the interpreter's last check and before the call: then only the pipe can end the call."""
    ended = subprocess.run([sys.executable, "-c", UNNOTICED], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "stopped\n"), ended.stderr
