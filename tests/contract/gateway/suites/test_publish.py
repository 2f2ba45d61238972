"""A suite as a data set for others: in the Hub's layout, with licences and provenance, also when its job is gone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from gateway.report.build import build_report
from shared.schemas.service import ServiceInfo, WeightsInfo
from tests.support.drawn_job import serve_drawn_job
from tests.support.suite_site import contrafact

WEIGHTS = WeightsInfo(role="base", id="org/drawn", revision="c0ffee", dtype="float32", licence="OpenRAIL-M")
SERVICE = ServiceInfo(
    service="diffusion_service", profile="tiny", device="cpu", deterministic=True, revision="1", weights=[WEIGHTS],
    version="1",
)  # fmt: skip


def test_a_suite_is_published_with_licences_and_provenance(tmp_path: Path) -> None:
    folder = tmp_path / "street"
    with serve_drawn_job(tmp_path, per_class=2) as gateway:
        build_report(gateway.context.sessions, gateway.context.store, "drawn", [SERVICE])
        suite = gateway.client.post("/suites", json={"job": "drawn", "name": "street"}).json()
        assert gateway.client.delete("/jobs/drawn").status_code == 204
        options = ("--licence", "CC-BY-4.0", "--attribution", "Drawn by nobody.")
        contrafact(str(gateway.client.base_url), "suites", "publish", "street", folder, *options)
        assert gateway.client.get("/suites/nobody/export", params={"licence": "MIT"}).status_code == 404
        assert gateway.client.get("/suites/street/export").status_code == 422, "no data set without a licence"
    _, head, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert yaml.safe_load(head)["license"] == "cc-by-4.0"
    assert "| base | org/drawn | c0ffee | OpenRAIL-M |" in text
    assert "Drawn by nobody." in text
    croissant = json.loads((folder / "croissant.json").read_text(encoding="utf-8"))
    assert (croissant["name"], croissant["license"]) == ("street", "CC-BY-4.0")
    [shard] = [item for item in croissant["distribution"] if "sha256" in item]
    data = folder / shard["contentUrl"]
    assert hashlib.sha256(data.read_bytes()).hexdigest() == shard["sha256"]
    arms = pq.read_table(data, columns=["arm"]).column("arm").to_pylist()
    assert arms.count("counterfactual") == suite["counterfactuals"] > 0
    assert arms.count("original") == suite["sources"]
    note = json.loads((folder / "contrafact.json").read_text(encoding="utf-8"))
    assert note["services"]["diffusion_service"]["weights"][0]["licence"] == "OpenRAIL-M"
