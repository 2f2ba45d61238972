"""The chart in k8s/, linted and installed by Helm for each example, and checked against our code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml

from evaluator_service.repair_worker import TrainerSettings
from gateway.settings import Settings
from shared.profiles.fetch_weights import hub_files
from shared.profiles.profile import Profile, load_profile
from shared.service.settings import ServiceSettings
from tests.support.chart_objects import (
    EXAMPLES,
    OURS,
    SERVICES,
    Object,
    containers,
    environment,
    example_values,
    installed,
    kind,
    objects,
    pods,
)
from tests.support.compose_files import BASE, GPU, composed
from tests.support.helm import CHART, install

KUBERNETES = ("1.30", "1.37")
PROBES = {"startupProbe": "/readyz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}


def test_there_are_four_ways_to_install() -> None:
    assert {"tiny", "one-gpu", "autoscaled", "external"} <= EXAMPLES.keys()


def test_the_linter_finds_nothing(release: Object) -> None:
    assert not [message for message in release["lint"]["Messages"] or [] if message["Severity"] > 1]


@pytest.mark.slow
@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_fit_the_schemas_of_kubernetes(release: Object, version: str) -> None:
    checked = set()
    for item in objects(release):
        if item["apiVersion"].split("/")[0] in ("keda.sh", "monitoring.coreos.com"):
            continue
        kubernetes_validate.validate(item, version, strict=True)
        checked.add(item["kind"])
    assert {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "Pod"} <= checked


def test_pods_may_do_little(release: Object) -> None:
    for name, pod in pods(release):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in containers(pod):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"], container["name"]
            assert not context["allowPrivilegeEscalation"], container["name"]
            assert context["capabilities"] == {"drop": ["ALL"]}, container["name"]
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, container["name"]
            assert "memory" in container["resources"]["limits"], container["name"]
            assert re.search(r":[^/:]*\d[^/:]*$", container["image"]), container["image"]


def test_whatever_stays_up_is_probed_by_ports_that_it_has(release: Object) -> None:
    for name, deployment in (kind(release, "Deployment") | kind(release, "StatefulSet")).items():
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            ports = {port["name"] for port in container.get("ports", [])}
            assert {"livenessProbe", "readinessProbe"} <= container.keys(), name
            for probe in {"startupProbe", "livenessProbe", "readinessProbe"} & container.keys():
                http = container[probe].get("httpGet")
                assert http is None or http["port"] in ports, (name, probe)
                assert container[probe]["timeoutSeconds"] > 1, (name, probe)
                if container["image"].rpartition("/")[2].startswith(OURS):
                    assert http["path"] == PROBES[probe], (name, probe)
        if name.endswith("-service"):
            (service, *_) = deployment["spec"]["template"]["spec"]["containers"]
            startup = service["startupProbe"]
            assert startup["httpGet"]["path"] == service["readinessProbe"]["httpGet"]["path"] == "/readyz"
            assert service["livenessProbe"]["httpGet"]["path"] == "/healthz"
            assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800


def test_variables_are_settings_of_the_code(release: Object, monkeypatch: pytest.MonkeyPatch) -> None:
    for _, pod in pods(release):
        for container in containers(pod):
            variables = environment(container)
            ours = {key: value for key, value in variables.items() if key.startswith("CONTRAFACT_")}
            if not container["image"].rpartition("/")[2].startswith(OURS) or "CONTRAFACT_URL" in ours:
                continue
            settings: type[Settings | ServiceSettings | TrainerSettings] = ServiceSettings
            if "CONTRAFACT_BROKER_URL" in ours:
                settings = Settings if "CONTRAFACT_DATABASE_URL" in ours else TrainerSettings
            setting_names = {f"CONTRAFACT_{name.upper()}" for name in settings.model_fields}
            assert ours.keys() - setting_names <= {"CONTRAFACT_API_KEY"}, container["name"]
            with monkeypatch.context() as patch:
                for key, value in ours.items():
                    if not value.startswith("secret "):
                        patch.setenv(key, value)
                settings()


@pytest.mark.slow
def test_every_setting_is_set_or_can_be() -> None:
    """Settings that reached no container did nothing."""
    tiny = example_values("tiny")
    (plain,) = installed([tiny])
    named = {name for _, pod in pods(plain) for container in containers(pod) for name in environment(container)}
    kinds = (Settings, ServiceSettings, TrainerSettings)
    settings = {f"CONTRAFACT_{field.upper()}" for settings in kinds for field in settings.model_fields}
    extra = [{"name": name, "value": "77"} for name in sorted(settings - named)]
    own = [{"name": "OF_ONE_SERVICE", "value": "1"}]
    (release,) = installed([tiny | {"extraEnv": extra, "services": {"diffusion": {"extraEnv": own}}}])
    read = {"gateway", "worker", "trainer", *(f"{name}-service" for name in SERVICES)}
    found = set()
    for _, pod in pods(release):
        for container in containers(pod):
            if container["name"] in read:
                found.add(container["name"])
                variables = environment(container)
                assert {item["name"] for item in extra if variables.get(item["name"]) != "77"} == set()
                assert ("OF_ONE_SERVICE" in variables) == (container["name"] == "diffusion-service")
    assert found == read


@pytest.mark.slow
def test_variables_and_certificates_of_the_site_reach_every_container_of_ours() -> None:
    """The weights step knew no proxy and no mirror, and a private authority had no mount."""
    site = {
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "certificates": {"configMap": "site", "key": "bundle.pem"},
    }
    (release,) = installed([example_values("one-gpu") | site])
    found = set()
    for _, pod in pods(release):
        for container in containers(pod):
            variables = environment(container)
            if not container["image"].rpartition("/")[2].startswith(OURS) or "CONTRAFACT_URL" in variables:
                continue
            found.add(container["name"])
            assert variables["HTTPS_PROXY"] == "http://proxy:3128", container["name"]
            folder, _, file = variables["SSL_CERT_FILE"].rpartition("/")
            assert {"name": "certificates", "mountPath": folder, "readOnly": True} in container["volumeMounts"]
            source = {"name": "site", "items": [{"key": "bundle.pem", "path": file}]}
            assert {"name": "certificates", "configMap": source} in pod["spec"]["volumes"]
    assert {"gateway", "worker", "weights", "wait-for-weights", "diffusion-service"} <= found


def test_models_compute_with_the_cores_that_they_request(release: Object) -> None:
    variables = {
        container["name"]: environment(container)
        for _, pod in pods(release)
        for container in containers(pod)
        if "CONTRAFACT_DEVICE" in environment(container)
    }
    assert {"caption-service", "llm-service", "diffusion-service", "evaluator-service", "trainer"} <= variables.keys()
    for name, settings_of_pod in variables.items():
        assert int(settings_of_pod["CONTRAFACT_THREADS"]) >= 1, name
        assert settings_of_pod["OMP_NUM_THREADS"] == settings_of_pod["CONTRAFACT_THREADS"], name


def test_the_bundled_object_store_logs_no_signatures(release: Object) -> None:
    for name, pod in pods(release):
        for container in containers(pod):
            if "VGW_BACKEND" in environment(container):
                assert environment(container)["VGW_QUIET"] == "true", name


def test_replicas_of_a_service_compute_in_the_type_that_its_value_names(releases: dict[str, Object]) -> None:
    expected = dict.fromkeys(EXAMPLES, dict.fromkeys(SERVICES, "auto"))
    expected["autoscaled"] = expected["autoscaled"] | {"evaluator": "float32"}
    for example, types in expected.items():
        for room, dtype in types.items():
            pod = kind(releases[example], "Deployment")[f"{room}-service"]["spec"]["template"]
            (service,) = [item for item in pod["spec"]["containers"] if item["name"] == f"{room}-service"]
            assert environment(service)["CONTRAFACT_DTYPE"] == dtype, (example, room)


def test_services_are_where_their_callers_look(release: Object) -> None:
    services = kind(release, "Service")
    worker = kind(release, "Deployment")["worker"]["spec"]["template"]["spec"]["containers"][0]
    for room in SERVICES:
        address = environment(worker)[f"CONTRAFACT_{room.upper()}_URL"]
        service = services[f"{room}-service"]
        assert address == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
        container = kind(release, "Deployment")[f"{room}-service"]["spec"]["template"]["spec"]["containers"][0]
        (port,) = container["ports"]
        arguments = composed(BASE)["services"][f"{room}-service"]["build"]["args"]
        assert (port["name"], port["containerPort"]) == (service["spec"]["ports"][0]["targetPort"], arguments["PORT"])


def test_selectors_find_exactly_their_pods(release: Object) -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(release)}
    for item in objects(release):
        if item["kind"] in ("Service", "PodDisruptionBudget"):
            selector = item["spec"]["selector"].get("matchLabels", item["spec"]["selector"])
            selected = [name for name, carried in labels.items() if selector.items() <= carried.items()]
            assert selected == [item["metadata"]["name"]]


def test_secrets_are_where_they_belong(release: Object) -> None:
    for name, pod in pods(release):
        for container in containers(pod):
            secret = {
                value.removeprefix("secret ")
                for value in environment(container).values()
                if value.startswith("secret ")
            }
            if "service" in name:
                assert not secret, name
            if "HF_TOKEN" in secret:
                assert container["name"] == "weights"
    for stored in kind(release, "Secret").values():
        needed = {
            value.removeprefix("secret ")
            for _, pod in pods(release)
            for container in containers(pod)
            for value in environment(container).values()
            if value.startswith("secret ")
        }
        assert needed - {"HF_TOKEN"} <= stored["stringData"].keys()
        assert "postgresql+psycopg://" in stored["stringData"]["CONTRAFACT_DATABASE_URL"]


def test_every_component_is_under_the_default_policy_and_state_is_closed(release: Object) -> None:
    policies = kind(release, "NetworkPolicy")
    default = policies["default"]["spec"]
    assert default["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in default
    for name, pod in pods(release):
        assert default["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items(), name
    (allowed,) = policies["state"]["spec"]["ingress"]
    (peer,) = allowed["from"]
    assert peer["podSelector"]["matchExpressions"][0]["values"] == ["gateway", "worker"]


def test_the_trainer_reaches_broker_and_store_and_holds_no_key_to_the_database(release: Object) -> None:
    deployments, policies = kind(release, "Deployment"), kind(release, "NetworkPolicy")
    (trainer,) = deployments["trainer"]["spec"]["template"]["spec"]["containers"]
    (worker,) = deployments["worker"]["spec"]["template"]["spec"]["containers"]
    mine, other = environment(trainer), environment(worker)
    both = {name for name in mine if name.startswith("CONTRAFACT_S3") or name.endswith(("BROKER_URL", "_STORE"))}
    assert len(both) == 6
    assert {name: mine[name] for name in both} == {name: other[name] for name in both}
    assert "CONTRAFACT_DATABASE_URL" not in mine
    (evaluator,) = deployments["evaluator-service"]["spec"]["template"]["spec"]["containers"]
    assert trainer["image"].removesuffix("-cuda") == evaluator["image"].removesuffix("-cuda")
    to = [peer["podSelector"]["matchLabels"] for peer in policies["trainer"]["spec"]["egress"][0]["to"]]
    assert [peer["app.kubernetes.io/component"] for peer in to] == ["redis", "object-store"]
    (expression,) = policies["trainer-state"]["spec"]["podSelector"]["matchExpressions"]
    assert expression["values"] == ["redis", "object-store"]


def test_gpus_bring_their_resource_toleration_and_image(releases: dict[str, Object]) -> None:
    for name, resource, services in (
        ("one-gpu", "nvidia.com/gpu.shared", {*SERVICES, "trainer"}),
        ("external", "nvidia.com/gpu", {*SERVICES, "trainer"}),
        ("autoscaled", "nvidia.com/gpu", {"diffusion", "evaluator"}),
        ("tiny", "nvidia.com/gpu", set()),
    ):
        gpu_services = set()
        for deployment, item in kind(releases[name], "Deployment").items():
            spec = item["spec"]["template"]["spec"]
            for container in spec["containers"]:
                if resource not in container["resources"]["limits"]:
                    continue
                gpu_services.add(deployment.removesuffix("-service"))
                assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
                assert item["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
                if container["name"] == "trainer" or container["name"].endswith("-service"):
                    assert container["image"].endswith("-cuda")
                    assert environment(container)["CONTRAFACT_DEVICE"] == "cuda"
        assert gpu_services == services, name


def test_autoscaling_follows_the_work(releases: dict[str, Object]) -> None:
    scaled = kind(releases["autoscaled"], "ScaledObject")
    assert scaled.keys() == {"worker", "diffusion-service", "evaluator-service"}
    dashboard = (CHART.parent / "monitoring/grafana/dashboards/contrafact.json").read_text(encoding="utf-8")
    for name, item in scaled.items():
        assert "replicas" not in kind(releases["autoscaled"], "Deployment")[name]["spec"]
        (trigger,) = item["spec"]["triggers"]
        promql_parser.parse(trigger["metadata"]["query"])
        (metric,) = re.findall(r"contrafact_\w+(?=\{)", trigger["metadata"]["query"])
        assert metric == ("contrafact_source_images" if name == "worker" else "contrafact_waiting")
        assert metric in dashboard  # whose names are checked against the code
        assert 'namespace="vision"' in trigger["metadata"]["query"]
        assert int(trigger["metadata"]["threshold"]) > 0
    for name in EXAMPLES.keys() - {"autoscaled"}:
        assert not kind(releases[name], "ScaledObject")


def test_weights_are_fetched_once_and_read_by_all(releases: dict[str, Object]) -> None:
    assert not kind(releases["tiny"], "Job")
    for name in EXAMPLES.keys() - {"tiny"}:
        (job,) = kind(releases[name], "Job").values()
        (fetching,) = job["spec"]["template"]["spec"]["containers"]
        assert fetching["command"][:3] == ["python", "-m", "shared.profiles.fetch_weights"]
        assert ("--servers" in fetching["command"]) == (name != "autoscaled")
        for room in SERVICES:
            spec = kind(releases[name], "Deployment")[f"{room}-service"]["spec"]["template"]["spec"]
            assert spec["initContainers"][0]["command"][2].startswith(
                "until python -m shared.profiles.fetch_weights --check"
            )
            for container in containers({"spec": spec}):
                assert {"name": "weights", "mountPath": "/weights", "readOnly": True} in container["volumeMounts"]


def test_the_evaluator_keeps_quarantined_models_on_a_volume(releases: dict[str, Object]) -> None:
    for name, release in releases.items():
        for room in SERVICES:
            spec = kind(release, "Deployment")[f"{room}-service"]["spec"]["template"]["spec"]
            (service,) = [item for item in spec["containers"] if item["name"] == f"{room}-service"]
            volumes = [volume for volume in spec["volumes"] if volume["name"] == "quarantine"]
            folder = environment(service).get("CONTRAFACT_QUARANTINE")
            if room != "evaluator":
                assert (volumes, folder) == ([], None), name
                continue
            assert {"name": "quarantine", "mountPath": folder} in service["volumeMounts"], name
            claim = {"persistentVolumeClaim": {"claimName": "quarantined-models"}}
            expected = claim if name == "external" else {"emptyDir": {}}
            assert volumes == [{"name": "quarantine", **expected}], name


@pytest.mark.slow
def test_the_language_server_is_that_of_compose_and_of_the_profile(releases: dict[str, Object]) -> None:
    command = composed(BASE, GPU)["services"]["language-server"]["command"]
    server = load_profile("paper").language.server
    assert server
    assert command[command.index("--alias") + 1] == server.model
    assert int(command[command.index("--parallel") + 1]) == server.concurrency
    for name in ("one-gpu", "external"):
        spec = kind(releases[name], "Deployment")["llm-service"]["spec"]["template"]["spec"]
        (container,) = [item for item in spec["containers"] if item["name"] == "language-server"]
        assert container["args"] == command
        assert container["image"] == composed(BASE, GPU)["services"]["language-server"]["image"]


def test_profiles_of_ones_own_reach_every_container_that_reads_one(releases: dict[str, Object], tmp_path: Path) -> None:
    (profile,) = kind(releases["autoscaled"], "ConfigMap").values()
    path = tmp_path / "profile.toml"
    path.write_text(profile["data"]["profile.toml"], encoding="utf-8")
    assert isinstance(load_profile(str(path)), Profile)
    assert tomllib.loads(path.read_text())["profile"]["name"] == "ours"
    assert len(hub_files(load_profile(str(path)))) == 4
    for _, pod in pods(releases["autoscaled"]):
        for container in containers(pod):
            if "CONTRAFACT_PROFILE" in environment(container):
                assert environment(container)["CONTRAFACT_PROFILE"] == "/profiles/profile.toml"
                assert any(mount["mountPath"] == "/profiles" for mount in container["volumeMounts"])


def test_external_state_brings_none_of_its_own(releases: dict[str, Object]) -> None:
    bundled = {"postgres", "redis", "object-store"}
    assert not bundled & (kind(releases["external"], "Deployment") | kind(releases["external"], "StatefulSet")).keys()
    assert not kind(releases["external"], "Secret")
    assert bundled <= (kind(releases["tiny"], "Deployment") | kind(releases["tiny"], "StatefulSet")).keys()
    worker = kind(releases["external"], "Deployment")["worker"]["spec"]["template"]["spec"]["containers"][0]
    assert environment(worker)["CONTRAFACT_S3_ENDPOINT"] == "s3.eu-central-1.amazonaws.com"
    assert environment(worker)["CONTRAFACT_S3_SECURE"] == "true"


def test_the_notes_begin_with_a_curl_that_would_work(release: Object) -> None:
    notes = release["notes"]
    assert 'curl -H "Authorization: Bearer $CONTRAFACT_API_KEY" -F images=@a.png' in notes
    assert "helm -n vision test demo" in notes
    gateway = kind(release, "Service")["gateway"]
    assert "https://contrafact.example.com" in notes or f"service/{gateway['metadata']['name']} 8000:80" in notes


def test_helm_test_submits_a_picture(release: Object) -> None:
    (pod,) = kind(release, "Pod").values()
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert "contrafact submit /tmp/images" in container["args"][0]
    assert environment(container)["CONTRAFACT_URL"] == "http://demo-contrafact-gateway:80"
    script = re.search(r"<<'PYTHON'\n(.*?)PYTHON", container["args"][0], re.DOTALL)
    assert script
    compile(script[1], "picture", "exec")


def test_wrong_values_are_refused_with_what_to_do() -> None:
    tiny = yaml.safe_load(EXAMPLES["tiny"].read_text(encoding="utf-8"))
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "set secrets.postgresPassword"),
        (tiny | {"secrets": tiny["secrets"] | {"apiKey": ""}}, "set secrets.apiKey"),
        (tiny | {"secrets": tiny["secrets"] | {"apiKey": "short"}}, "apiKey"),
        (tiny | {"postgres": {"bundled": False}}, "set secrets.databaseUrl"),
        (tiny | {"objectStore": {"bundled": False}}, "set objectStore.endpoint"),
        (tiny | {"objectStore": {"bundled": False, "endpoint": "https://s3.example.com"}}, "endpoint"),
        (tiny | {"worker": {"autoscaling": {"enabled": True}}}, "set prometheus.address"),
        (tiny | {"gateway": {"ingress": {"enabled": True}}}, "set gateway.ingress.host"),
        (tiny | {"profile": "huge"}, "profile"),
        (tiny | {"gateways": 3}, "gateways"),
        (tiny | {"services": {"caption": {"gpu": 1}}}, "gpu"),
        (tiny | {"services": {"caption": {"dtype": "int8"}}}, "dtype"),
        (tiny | {"profile": "modern"}, "set services.caption.sidecars"),
        (tiny | {"extraEnv": [{"name": "CONTRAFACT_PROFILE", "value": "paper"}]}, "CONTRAFACT_PROFILE"),
        (tiny | {"extraEnv": [{"name": "CONTRAFACT_MAX_BATCH", "value": 4}]}, "extraEnv"),
    ]
    for (values, sentence), outcome in zip(cases, install([values for values, _ in cases]), strict=True):
        assert sentence in outcome.get("refused", ""), (values, outcome.get("refused"))
