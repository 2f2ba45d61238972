"""`python helm_install.py CHART`: Helm lints and installs a chart into a Kubernetes API that takes everything.

Runs where helm-sdkpy is, in a process of its own. Reads a JSON list of values from stdin; writes, for each, its release
as Helm describes it, or Helm's refusal, as JSON to stdout. Helm renders only while it installs, so there is an API for
it to talk to: it knows the kinds below, has nothing yet, and takes what it is given.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import helm_sdkpy  # type: ignore[import-not-found]
import yaml

KINDS = {
    "v1": ("ConfigMap", "PersistentVolumeClaim", "Pod", "Secret", "Service"),
    "apps/v1": ("Deployment", "StatefulSet"),
    "batch/v1": ("Job",),
    "policy/v1": ("PodDisruptionBudget",),
    "networking.k8s.io/v1": ("Ingress", "NetworkPolicy"),
    "keda.sh/v1alpha1": ("ScaledObject",),
    "monitoring.coreos.com/v1": ("PodMonitor", "PrometheusRule"),
}
PLURALS = {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"}


class Cluster(BaseHTTPRequestHandler):
    """As much of the Kubernetes API as `helm install` asks."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/version":
            self._answer(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        elif path == "/api":
            self._answer(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/apis":
            self._answer(
                200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(v) for v in KINDS if "/" in v]}
            )
        elif (version := path.removeprefix("/apis/").removeprefix("/api/")) in KINDS:
            self._answer(200, _resources(version))
        elif path.endswith("/secrets"):
            self._answer(200, {"kind": "SecretList", "apiVersion": "v1", "items": [], "metadata": {}})
        else:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            self._answer(404, status)

    def do_POST(self) -> None:
        self._echo(201)

    def do_PUT(self) -> None:
        self._echo(200)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _echo(self, code: int) -> None:
        self._send(code, self.headers["Content-Type"], self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        self._send(code, "application/json", json.dumps(body).encode())

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _group(version: str) -> dict[str, Any]:
    name, _, short = version.partition("/")
    entry = {"groupVersion": version, "version": short}
    return {"name": name, "versions": [entry], "preferredVersion": entry}


def _resources(version: str) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "patch", "update"]
    items = [
        {
            "name": PLURALS.get(kind, f"{kind.lower()}s"),
            "singularName": kind.lower(),
            "namespaced": True,
            "kind": kind,
            "verbs": verbs,
        }
        for kind in KINDS[version]
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": items}


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Values over values, as Helm coalesces them; for the linter, which takes none."""
    both = {name: merged(base[name], value) for name, value in over.items() if isinstance(value, dict) and name in base}
    return base | over | both


async def install(config: Any, chart: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Lint the chart with these values as its own, then install it; `refused` instead where Helm will not."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "contrafact")
        shutil.copytree(chart, copy)
        chart_values = yaml.safe_load((copy / "values.yaml").read_text(encoding="utf-8"))
        (copy / "values.yaml").write_text(yaml.safe_dump(merged(chart_values, values)), encoding="utf-8")
        lint = await helm_sdkpy.Lint(config).run(str(copy))
    try:
        release = await helm_sdkpy.Install(config).run("demo", str(chart), values, wait=False, timeout=300)
    except helm_sdkpy.HelmError as error:
        return {"refused": str(error), "lint": lint}
    hooks = [hook["manifest"] for hook in release.get("hooks") or []]
    return {"manifest": release["manifest"], "hooks": hooks, "notes": release["info"]["notes"], "lint": lint}


async def main(chart: Path) -> None:
    """Install once for each set of values on stdin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Cluster)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        cluster = {"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        context = {"name": "test", "context": {"cluster": "test", "user": "test"}}
        user = {"name": "test", "user": {}}
        kubeconfig = {"apiVersion": "v1", "kind": "Config", "current-context": "test"}
        json.dump(kubeconfig | {"clusters": [cluster], "contexts": [context], "users": [user]}, file)
        file.flush()
        config = helm_sdkpy.Configuration(namespace="vision", kubeconfig=file.name)
        print(json.dumps([await install(config, chart, values) for values in json.load(sys.stdin)]))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
