"""Start every pod of the chart as a container with the pod's own security context.

    helm template demo k8s -f k8s/examples/tiny.yaml | python k8s/checks/run_as_pods.py          # prints the commands
    helm template demo k8s -f k8s/examples/tiny.yaml | python k8s/checks/run_as_pods.py --run    # runs them

A kubelet gives a container its user, a read-only root file system, no capabilities, and empty volumes that belong to
the pod's group; Docker can do the same. A container fails if it ends and names a refusal of the kernel (`REFUSALS`).
Secrets and the services that it would ask are absent, so most containers end for want of them: that is no failure here.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

REFUSALS = ("Permission denied", "Read-only file system", "Operation not permitted", "must be run as root")
WORKLOADS = ("Deployment", "StatefulSet", "Job")

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """A container to start, by the names of its pod and of itself, and Docker's options and arguments for it."""

    name: str
    image: str
    options: tuple[str, ...]
    arguments: tuple[str, ...]

    def command(self, name: str) -> list[str]:
        """The command that starts it, as a container of this name."""
        return ["docker", "run", "--rm", "--name", name, *self.options, self.image, *self.arguments]


def trials(manifests: str) -> Iterator[Trial]:
    """One for each container of the manifests, those at a pod's start included."""
    for item in yaml.safe_load_all(manifests):
        if item and item["kind"] in (*WORKLOADS, "Pod"):
            pod = item["spec"] if item["kind"] == "Pod" else item["spec"]["template"]["spec"]
            claims = [claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", [])]
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                yield _trial(item["metadata"]["name"], pod, container, claims)


def _trial(pod_name: str, pod: Object, container: Object, claims: list[str]) -> Trial:
    group = pod["securityContext"].get("fsGroup", 0)
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext'].get('runAsGroup', 0)}"
    options = [f"--user={user}", f"--group-add={group}", "--network=none"]
    context = container["securityContext"]
    if context["readOnlyRootFilesystem"]:
        options.append("--read-only")
    if not context["allowPrivilegeEscalation"]:
        options.append("--security-opt=no-new-privileges")
    options += [f"--cap-drop={name}" for name in context["capabilities"]["drop"]]
    empty = {volume["name"] for volume in pod.get("volumes", []) if "configMap" not in volume} | set(claims)
    for mount in container.get("volumeMounts", []):
        if mount["name"] in empty:
            # As a kubelet makes it: of root and of the pod's group, which may write unless the mount is read-only.
            mode = "ro" if mount.get("readOnly") else "rw"
            options.append(f"--tmpfs={mount['mountPath']}:{mode},exec,gid={group},mode=2775")
    options += [f"--env={item['name']}={item['value']}" for item in container.get("env", []) if "value" in item]
    command, arguments = container.get("command", []), container.get("args", [])
    if command:
        options.append(f"--entrypoint={command[0]}")
    return Trial(f"{pod_name}/{container['name']}", container["image"], tuple(options), (*command[1:], *arguments))


def refusal(trial: Trial, seconds: float) -> str:
    """What a container was not allowed to do, as it says; empty if it was refused nothing in `seconds`."""
    name = f"trial-{uuid.uuid4().hex[:12]}"
    try:
        done = subprocess.run(trial.command(name), capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        subprocess.run(["docker", "kill", name], capture_output=True)
        return ""
    lines = (done.stdout + done.stderr).splitlines()
    return next((line for line in lines if any(word in line for word in REFUSALS)), "")


def main() -> None:
    """Print or run the trials of the manifests on stdin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run them with docker; otherwise print the commands")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a container is watched")
    options = parser.parse_args()
    refused = 0
    for number, trial in enumerate(trials(sys.stdin.read())):
        if not options.run:
            print(shlex.join(trial.command(f"trial-{number}")))
        elif reason := refusal(trial, options.seconds):
            refused += 1
            print(f"REFUSED  {trial.name}: {reason}")
        else:
            print(f"ok       {trial.name}")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
