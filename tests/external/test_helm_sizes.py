"""The chart's numbers: memory, cores, connections to Postgres, seconds to end, and what one node must hold."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from evaluator_service.models_under_test.messages import default_memory_mib
from gateway.operations.doctor import gigabytes, needed_weights
from shared.profiles.profile import load_profile
from shared.schemas.service import SERVICES as SERVICE_NAMES
from shared.service.settings import ServiceSettings
from tests.support.chart_objects import (
    SERVICES,
    Object,
    containers,
    environment,
    example_values,
    installed,
    kind,
    pods,
)
from tests.support.helm import install
from tests.support.paths import REPOSITORY

UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
EVALUATOR_BYTES = 2**30  # Python, torch and the tiny models
HOST_BYTES = 2 * 2**30  # Python, torch and CUDA beside the weights
DECODING = ("gateway", "worker", "trainer", *(f"{name}-service" for name in SERVICES))
NODE_CORES = 4.0
SYSTEM_CORES = 0.7  # of a node, for Kubernetes' own pods


def size_of(quantity: str) -> int:
    """Bytes of a quantity such as 4Gi."""
    return round(float(quantity[:-2]) * UNITS[quantity[-2:]])


def cores_of(quantity: str | int) -> float:
    """Cores of a quantity such as 500m."""
    text = str(quantity)
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def spec_of(release: Object, deployment: str) -> Object:
    """The specification of a deployment's pods."""
    spec: Object = kind(release, "Deployment")[deployment]["spec"]["template"]["spec"]
    return spec


def main_container(release: Object, deployment: str) -> Object:
    """The container that a deployment is named after."""
    (container,) = [item for item in spec_of(release, deployment)["containers"] if item["name"] == deployment]
    spec: Object = container
    return spec


def modern_services() -> Object:
    """GPUs and language servers of the modern profiles."""
    services: Object = {name: {"gpus": 1} for name in ("diffusion", "evaluator")}
    for name in ("caption", "llm", "evaluator"):
        services[name] = services.get(name, {}) | {"sidecars": [{"name": "vllm", "image": "vllm/vllm-openai:v0.33.0"}]}
    return services


@pytest.fixture(scope="module")
def modern() -> dict[str, Object]:
    """The modern profiles with GPUs, other values at their defaults."""
    names = ("modern", "modern-24gb", "modern-80gb")
    releases = installed([example_values("tiny") | {"profile": name, "services": modern_services()} for name in names])
    return dict(zip(names, releases, strict=True))


@pytest.mark.parametrize("example", ["one-gpu", "external"])
def test_the_papers_weights_fit_into_the_hosts_memory(releases: dict[str, Object], example: str) -> None:
    assert_weights_fit(releases[example], "paper")


@pytest.mark.parametrize("profile", ["modern", "modern-24gb", "modern-80gb"])
def test_the_weights_of_modern_fit_into_the_hosts_memory(modern: dict[str, Object], profile: str) -> None:
    assert_weights_fit(modern[profile], profile)


def assert_weights_fit(release: Object, profile: str) -> None:
    """Every service can hold its weights in memory, from where they move to a GPU."""
    needed = needed_weights(load_profile(profile))
    for service in SERVICE_NAMES:
        resources = main_container(release, service.replace("_", "-"))["resources"]
        weights = gigabytes(needed[service]) * 1e9
        assert size_of(resources["limits"]["memory"]) >= weights + HOST_BYTES, service
        largest = max(gigabytes([source]) for source in needed[service]) * 1e9
        assert size_of(resources["requests"]["memory"]) >= largest, f"{service}: they move to the GPU one by one"


def test_memory_that_a_service_names_itself_is_kept(releases: dict[str, Object]) -> None:
    resources = main_container(releases["autoscaled"], "diffusion-service")["resources"]
    assert resources["requests"] == {"cpu": "2", "memory": "12Gi"}
    assert resources["limits"] == {"memory": "24Gi", "nvidia.com/gpu": 1}


def test_tiny_starts_on_a_node_of_four_cores(releases: dict[str, Object]) -> None:
    cores = sum(
        sum(cores_of(container["resources"]["requests"]["cpu"]) for container in pod["spec"]["containers"])
        for _, pod in pods(releases["tiny"])
    )
    assert cores <= NODE_CORES - SYSTEM_CORES, "the pod of `helm test` included"


@pytest.mark.slow
def test_every_process_that_decodes_images_has_the_gateways_limit() -> None:
    (release,) = installed([example_values("tiny") | {"maxImagePixels": 50_000_000}])
    for name in DECODING:
        assert environment(main_container(release, name))["CONTRAFACT_MAX_IMAGE_PIXELS"] == "50000000", name


@pytest.mark.slow
def test_an_uploaded_model_fits_beside_the_evaluator(releases: dict[str, Object]) -> None:
    for name, release in releases.items():
        evaluator = main_container(release, "evaluator-service")
        variables = environment(evaluator)
        assert variables["CONTRAFACT_UPLOAD_MEMORY_MIB"] == "0", "derived from the container's limit"
        limit = size_of(evaluator["resources"]["limits"]["memory"])
        upload = default_memory_mib(variables["CONTRAFACT_DEVICE"], limit) * 2**20
        assert upload + EVALUATOR_BYTES <= limit, name
    (chosen,) = installed([example_values("tiny") | {"uploadMemoryMib": 1024}])
    assert environment(main_container(chosen, "evaluator-service"))["CONTRAFACT_UPLOAD_MEMORY_MIB"] == "1024"
    assert "CONTRAFACT_UPLOAD_MEMORY_MIB" not in environment(main_container(chosen, "caption-service"))


def test_a_stopped_service_may_end_its_longest_batch(release: Object) -> None:
    for name in SERVICES:
        spec = spec_of(release, f"{name}-service")
        variables = environment(main_container(release, f"{name}-service"))
        longest = float(variables["CONTRAFACT_MAX_BATCH_SECONDS"])
        requests = float(variables["UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN"])
        assert requests >= longest
        assert longest > 600, "no shorter than a caller waits"
        pause = main_container(release, f"{name}-service")["lifecycle"]["preStop"]["sleep"]["seconds"]
        drain = ServiceSettings.model_fields["drain_seconds"].default
        assert spec["terminationGracePeriodSeconds"] >= pause + requests + drain


def connections(release: Object) -> int:
    """What gateways and workers may open together, without an update."""
    scaled = kind(release, "ScaledObject")
    total = 0
    for name in ("gateway", "worker"):
        replicas = kind(release, "Deployment")[name]["spec"].get("replicas")
        if replicas is None:
            replicas = scaled[name]["spec"]["maxReplicaCount"]
        total += replicas * int(environment(main_container(release, name))["CONTRAFACT_DATABASE_CONNECTIONS"])
    return total


def test_postgres_has_connections_for_all(releases: dict[str, Object]) -> None:
    for example, release in releases.items():
        if "postgres" not in kind(release, "StatefulSet"):
            continue
        (postgres,) = kind(release, "StatefulSet")["postgres"]["spec"]["template"]["spec"]["containers"]
        (limit,) = re.findall(r"max_connections=(\d+)", " ".join(postgres["args"]))
        assert int(limit) >= max(100, connections(release) + 13), example
    assert connections(releases["external"]) <= 97


def test_a_worker_has_a_connection_for_each_image_in_progress(release: Object) -> None:
    variables = environment(main_container(release, "worker"))
    assert int(variables["CONTRAFACT_DATABASE_CONNECTIONS"]) > int(variables["CONTRAFACT_IMAGES_IN_FLIGHT"])


@pytest.mark.slow
def test_too_many_connections_for_an_external_database_are_refused() -> None:
    values = example_values("external")
    many = values | {"worker": {"replicas": 8}}
    enough = many | {"postgres": {"bundled": False, "maxConnections": 200}}
    refused, accepted = install([many, enough])
    assert "postgres.maxConnections" in refused["refused"]
    assert "178 connections" in refused["refused"], (
        "3 gateways of 16, 10 workers of 12 - 2 of them still ending -, and 10"
    )
    assert "refused" not in accepted


def test_pods_that_mount_a_volume_of_one_node_are_put_there(releases: dict[str, Object]) -> None:
    assert example_values("one-gpu")["weights"] == {"accessModes": ["ReadWriteOnce"]}
    mounting = []
    for name, pod in pods(releases["one-gpu"]):
        if not any("persistentVolumeClaim" in volume for volume in pod["spec"].get("volumes", [])):
            assert "affinity" not in pod["spec"], name
            continue
        mounting.append(name)
        (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items(), name
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    assert len(mounting) == 6, "four services, the trainer, the job that fetches"
    assert not any("affinity" in pod["spec"] for _, pod in pods(releases["external"]))


@pytest.mark.slow
def test_a_changed_job_has_another_name() -> None:
    """Kubernetes refuses a change of a job's template, and with it the whole upgrade."""
    values = example_values("one-gpu")
    changes: list[dict[str, Any]] = [
        {},
        {"images": {"registry": "registry.example.com/vision"}},
        {"images": {"pullPolicy": "Always"}},
        {"images": {"pullSecrets": [{"name": "registry"}]}},
        {"weights": {"accessModes": ["ReadWriteMany"]}},
        {"gpu": {"taint": "example.com/gpu"}},
        {"profile": "modern", "services": modern_services()},
        {"profile": "modern", "services": modern_services(), "weights": {"servers": True}},
    ]
    jobs = [kind(release, "Job") for release in installed([values | change for change in changes])]
    names = [name for cron_jobs in jobs for name in cron_jobs]
    templates = [yaml.safe_dump(job["spec"]["template"]) for cron_jobs in jobs for job in cron_jobs.values()]
    assert len(set(templates)) == len(changes)
    assert len(set(names)) == len(changes)
    assert [*kind(installed([values])[0], "Job")] == names[:1], "and an unchanged one keeps it"


def test_the_trainers_metrics_are_scraped(releases: dict[str, Object]) -> None:
    (expression,) = kind(releases["tiny"], "NetworkPolicy")["monitoring"]["spec"]["podSelector"]["matchExpressions"]
    assert "trainer" in expression["values"]
    monitors = kind(releases["autoscaled"], "PodMonitor").values()
    scraped = {
        (component, endpoint["port"])
        for monitor in monitors
        for component in monitor["spec"]["selector"]["matchExpressions"][0]["values"]
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
    }
    ports = {
        (pod["metadata"]["labels"]["app.kubernetes.io/component"], port["name"])
        for _, pod in pods(releases["autoscaled"])
        for container in containers(pod)
        for port in container.get("ports", [])
    }
    assert scraped <= ports
    assert ("trainer", "metrics") in scraped


def test_the_alert_rules_come_with_the_monitors(releases: dict[str, Object]) -> None:
    (rule,) = kind(releases["autoscaled"], "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load((REPOSITORY / "k8s/alerts.yaml").read_text(encoding="utf-8"))
    assert not kind(releases["tiny"], "PrometheusRule")


def test_wrong_numbers_are_refused() -> None:
    tiny = example_values("tiny")
    cases: list[tuple[Object, str]] = [
        (tiny | {"weights": {"accessModes": ["ReadWriteOncePod"]}}, "accessModes"),
        (tiny | {"memory": {"tiny": {"caption": {"request": "1", "limit": "4Gi"}}}}, "request"),
        (tiny | {"languageServer": {"cacheType": "q2"}}, "cacheType"),
    ]
    for (values, word), outcome in zip(cases, install([values for values, _ in cases]), strict=True):
        assert word in outcome.get("refused", ""), (values, outcome.get("refused"))
