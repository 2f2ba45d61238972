"""The evaluator's keys are beyond the reach of an uploaded model that takes over its process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

NOBODY = 65534
EVALUATOR = """
import ctypes, os, sys
from evaluator_service.models_under_test.sandbox import hide_process
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after a start as this user
if sys.argv[1] == "hidden":
    hide_process()
print("ready", flush=True)
sys.stdin.read()
"""
UPLOAD = """
import sys
try:
    print(b"ENDPOINT_KEY" in open(f"/proc/{sys.argv[1]}/environ", "rb").read())
except PermissionError:
    print("refused")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux hides processes by prctl")
@pytest.mark.parametrize(("mode", "seen"), [("hidden", "refused"), ("open", "True")])
def test_another_process_of_the_user_cannot_read_the_evaluator_s_environment(mode: str, seen: str) -> None:
    environment = {**os.environ, "ENDPOINT_KEY": "secret"}
    command = [sys.executable, "-c", EVALUATOR, mode]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe) as evaluator:
        assert evaluator.stdout is not None
        assert evaluator.stdout.readline().strip() == "ready"
        upload = [sys.executable, "-I", "-c", UPLOAD, str(evaluator.pid)]
        user = NOBODY if os.getuid() == 0 else None
        done = subprocess.run(upload, capture_output=True, text=True, user=user, group=user, check=True)
        evaluator.communicate("")
    assert done.stdout.strip() == seen
