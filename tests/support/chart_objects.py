"""The objects that Helm makes of the chart's examples, and readers of them for the tests."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.helm import CHART, install

EXAMPLES = {path.stem: path for path in sorted((CHART / "examples").glob("*.yaml"))}
SERVICES = ("caption", "llm", "diffusion", "evaluator")
OURS = ("contrafact-gateway:", "contrafact-weights:", *(f"contrafact-{name}-service:" for name in SERVICES))

Object = dict[str, Any]


def installed(values: list[Object]) -> list[Object]:
    """Helm's release for each set of values, with its `objects`. Raises AssertionError for values that are refused."""
    releases = install(values)
    for release in releases:
        assert "refused" not in release, release["refused"]
        texts = [release["manifest"], *release["hooks"]]
        release["objects"] = [item for text in texts for item in yaml.load_all(text, yaml.CSafeLoader) if item]
    return releases


def example_values(name: str) -> Object:
    """The values of an example."""
    values: Object = yaml.safe_load(EXAMPLES[name].read_text(encoding="utf-8"))
    return values


def objects(release: Object) -> list[Object]:
    """All objects of a release."""
    items: list[Object] = release["objects"]
    return items


def kind(release: Object, name: str) -> dict[str, Object]:
    """Objects of one kind by their name without the release's."""
    return {
        item["metadata"]["name"].removeprefix("demo-contrafact-"): item
        for item in objects(release)
        if item["kind"] == name
    }


def pods(release: Object) -> Iterator[tuple[str, Object]]:
    """Pods and templates of pods, with the name of what makes them."""
    for item in objects(release):
        if item["kind"] == "Pod":
            yield item["metadata"]["name"], item
        elif item["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield item["metadata"]["name"], item["spec"]["template"]


def containers(pod: Object) -> list[Object]:
    """The containers of a pod, those at its start included."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def environment(container: Object) -> dict[str, str]:
    """Variables with their values; `secret KEY` for one from a Secret, the requested cores, rounded up, for threads."""
    return {item["name"]: _value(item, container) for item in container.get("env", [])}


def _value(item: Object, container: Object) -> str:
    if "value" in item:
        return str(item["value"])
    source = item["valueFrom"]
    if "secretKeyRef" in source:
        return f"secret {source['secretKeyRef']['key']}"
    assert source == {"resourceFieldRef": {"resource": "requests.cpu"}}
    cores = str(container["resources"]["requests"]["cpu"])
    return str(math.ceil(int(cores[:-1]) / 1000 if cores.endswith("m") else float(cores)))
