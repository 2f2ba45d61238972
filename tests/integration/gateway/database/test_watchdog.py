"""What a test run has started as a daemon ends with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.work_site import wait_for

WATCHING = """
import signal, sys
from tests.support.watchdog import ended_with_this_process
with ended_with_this_process(int(sys.argv[1]), sys.argv[2]):
    print("watched", flush=True)
    signal.pause()
"""


def obey_quit() -> None:
    """As servers do, even where the shell has started the tests in the background and signals are ignored."""
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_daemon_ends_with_the_test_run_that_started_it(how: signal.Signals, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with subprocess.Popen(["sleep", "600"], preexec_fn=obey_quit) as daemon:
        command = [sys.executable, "-c", WATCHING, str(daemon.pid), str(data)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            assert run.stdout.readline() == "watched\n"
            run.send_signal(how)
        assert daemon.wait(timeout=300) == -signal.SIGQUIT
    wait_for(lambda: not data.exists())
