"""The script that starts the chart's pods as containers: each container with its own security context."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.chart_objects import Object, containers, objects, pods
from tests.support.paths import REPOSITORY

SCRIPT = REPOSITORY / "k8s" / "checks" / "run_as_pods.py"
# As the engine is called; a container of one user is refused a write.
DOCKER = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in *--user=999:999*) echo "mkdir: cannot create directory: Read-only file system" >&2; exit 1;; esac
"""


def run(release: Object, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script over a release's manifests."""
    manifests = yaml.safe_dump_all(objects(release))
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, input=manifests, text=True, capture_output=True, env=os.environ | environment)


@pytest.mark.slow
def test_every_container_is_started_as_its_pod_would(releases: dict[str, Object]) -> None:
    for release in releases.values():
        lines = run(release).stdout.splitlines()  # arguments may have several lines
        started = [(pod, container) for _, pod in pods(release) for container in containers(pod)]
        text = "\n".join(lines)
        for pod, container in started:
            context = pod["spec"]["securityContext"]
            assert f"--user={context['runAsUser']}:{context['runAsGroup']}" in text
            assert container["image"] in text
        starts = [line for line in lines if line.startswith("docker run")]
        assert len(starts) == len(started)
        for line in starts:
            assert {"--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"} <= set(line.split())


def test_volumes_belong_to_the_pods_group(releases: dict[str, Object]) -> None:
    lines = run(releases["one-gpu"]).stdout.splitlines()
    (postgres,) = [line for line in lines if "postgres:" in line and line.startswith("docker run")]
    assert "--tmpfs=/var/lib/postgresql:rw,exec,gid=999,mode=2775" in postgres
    starts = [line for line in lines if line.startswith("docker run") and " contrafact-caption-service:" in line]
    (caption,) = [line for line in starts if "fetch_weights" not in line]
    assert "--tmpfs=/weights:ro,exec,gid=10001,mode=2775" in caption


@pytest.mark.parametrize("example", ["tiny"])
def test_a_refused_write_fails_the_trial(releases: dict[str, Object], example: str, tmp_path: Path) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    calls = tmp_path / "calls"
    done = run(releases[example], "--run", PATH=f"{tmp_path}:{os.environ['PATH']}", CALLS=str(calls))
    assert done.returncode == 1
    refused = [line for line in done.stdout.splitlines() if line.startswith("REFUSED")]
    assert len(refused) == 1
    assert "postgres" in refused[0]
    assert "Read-only file system" in refused[0]
