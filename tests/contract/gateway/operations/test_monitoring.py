"""Prometheus can scrape the metrics, and the dashboard queries metrics that exist."""

from __future__ import annotations

import json
import re
from typing import Any

import promql_parser
import yaml
from prometheus_client import REGISTRY, CollectorRegistry

from gateway import metrics
from gateway.database.sessions import Sessions
from gateway.operations import gauges
from shared.service.batch_metrics import BatchMetrics
from shared.service.memory_metrics import add_memory_metrics
from tests.support.compose_files import BASE, ROOT, composed
from tests.support.databases import ON_SQLITE

MONITORING = ROOT / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana/dashboards/contrafact.json").read_text(encoding="utf-8"))
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "k8s/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
OF_PROMETHEUS = {"up": {"job", "instance"}}  # what it adds by itself
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def exported(sessions: Sessions) -> dict[str, set[str]]:
    """Names that a query may use → the labels of each."""
    registry = CollectorRegistry()
    BatchMetrics("caption_service", registry).count("done")
    registry.register(gauges.Work(sessions))
    add_memory_metrics(registry)
    metrics.CALLS.labels("caption_service", "/v1/captions", "200").observe(1)
    metrics.RECORDED.labels("/v1/captions", "found").inc()
    metrics.STEPS.labels("image", "done").observe(1)
    labels: dict[str, set[str]] = {}
    for source in (registry, REGISTRY):
        for metric in source.collect():
            for sample in metric.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


@ON_SQLITE
def test_the_dashboard_asks_for_metrics_and_labels_that_exist(sessions: Sessions) -> None:
    labels_of = exported(sessions)
    for query in QUERIES:
        promql_parser.parse(query)
        names = re.findall(r"\bcontrafact_\w+", query)
        assert names
        for name in names:
            assert name in labels_of, f"{name}, in {query}"
        labels = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in re.split(r",\s*", group)}
        labels |= set(re.findall(r"[{,]\s*(\w+)\s*[=!]", query))
        assert all(labels <= labels_of[name] for name in names), query


@ON_SQLITE
def test_alert_rules_ask_for_metrics_and_labels_that_exist_and_say_what_to_do(sessions: Sessions) -> None:
    labels_of = exported(sessions) | OF_PROMETHEUS
    for rule in RULES:
        query = rule["expr"]
        promql_parser.parse(query)
        selectors = re.findall(r"\b(contrafact_\w+|up)\b(?:\{([^}]*)\})?", query)
        assert selectors, query
        for name, matchers in selectors:
            assert name in labels_of, f"{name}, in {query}"
            assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= labels_of[name], query
        available = set().union(*(labels_of[name] for name, _ in selectors))
        kept = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in re.split(r",\s*", group)}
        assert kept <= available, query
        text = " ".join(rule["annotations"].values())
        shown = set(re.findall(r"\$labels\.(\w+)", text))
        assert shown <= (kept or available | {"instance"}), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["labels"]["severity"] in ("warning", "critical")
    subjects = {"QueueOld", "StepsFail", "DeviceErrors", "DiskNearlyFull"}
    assert {f"Contrafact{subject}" for subject in subjects} <= {rule["alert"] for rule in RULES}


def test_prometheus_reads_the_rules_of_the_chart_for_the_parts_that_it_scrapes() -> None:
    prometheus = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
    (path,) = prometheus["rule_files"]
    assert f"./k8s/alerts.yaml:{path}:ro" in composed(BASE)["services"]["prometheus"]["volumes"]
    (up,) = (rule["expr"] for rule in RULES if rule["alert"] == "ContrafactPartDown")
    assert set(re.findall(r"[\w-]+", up.partition('"')[2].partition('"')[0])) == {
        job["job_name"] for job in prometheus["scrape_configs"]
    }


def test_every_metric_of_the_models_and_of_the_work_is_on_the_dashboard() -> None:
    text = " ".join(QUERIES)
    for name in ("batch_size", "batch_wait_seconds", "batch_run_seconds", "waiting", "batch_items_total", "jobs"):
        assert f"contrafact_{name}" in text
    for name in ("source_images", "step_seconds", "service_call_seconds", "recorded_calls_total"):
        assert f"contrafact_{name}" in text


def test_panels_do_not_overlap_and_have_one_source() -> None:
    provisioned = yaml.safe_load((MONITORING / "grafana/provisioning/datasources/prometheus.yml").read_text())
    (source,) = provisioned["datasources"]
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"] == {"type": source["type"], "uid": source["uid"]}
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & mine
        assert max(x for x, _ in mine) < 24
        cells |= mine


def test_prometheus_scrapes_every_service_where_it_answers() -> None:
    services = composed(BASE)["services"]
    jobs = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    scraped = {job["dns_sd_configs"][0]["names"][0]: job["dns_sd_configs"][0]["port"] for job in jobs}
    for name, port in scraped.items():
        test = " ".join(services[name]["healthcheck"]["test"])
        assert f"http://127.0.0.1:{port}/readyz" in test
    assert scraped.keys() == {"gateway", "worker", "trainer", *(name for name in services if name.endswith("-service"))}
    (source,) = yaml.safe_load((MONITORING / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"


def test_mounted_files_exist_where_grafana_looks_for_them() -> None:
    services = composed(BASE)["services"]
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        for volume in services[name]["volumes"]:
            if volume.startswith("./"):
                assert (ROOT / volume.split(":")[0]).exists(), volume
    provider = yaml.safe_load((MONITORING / "grafana/provisioning/dashboards/contrafact.yml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    assert any(f":{folder}:" in volume for volume in services["grafana"]["volumes"])
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/contrafact.json"
