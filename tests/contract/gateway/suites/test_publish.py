"""A suite as a data set for others: in the Hub's layout, with licences and provenance, also when its job is gone."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from embedded.demo import read_options
from gateway.report.build import build_report
from shared.schemas.service import ServiceInfo, WeightsInfo
from tests.support.drawn_job import serve_drawn_job
from tests.support.paths import REPOSITORY
from tests.support.suite_site import contrafact

RELEASE = REPOSITORY / ".github/workflows/release.yml"
WEIGHTS = WeightsInfo(role="base", id="org/drawn", revision="c0ffee", dtype="float32", licence="OpenRAIL-M")
SERVICE = ServiceInfo(
    service="diffusion_service", profile="tiny", device="cpu", deterministic=True, revision="1", weights=[WEIGHTS],
    version="1",
)  # fmt: skip


def test_the_release_workflow_runs_commands_that_there_are() -> None:
    steps = yaml.safe_load(RELEASE.read_text(encoding="utf-8"))["jobs"]["release"]["steps"]
    commands = [shlex.split(step["run"]) for step in steps if "run" in step]
    targets = {line.split(":")[0] for line in (REPOSITORY / "Makefile").read_text().splitlines() if ": " in line}
    (demo,) = (words[3:] for words in commands if words[1:3] == ["-m", "embedded.demo"])
    assert all(words[1] in targets for words in commands if words[0] == "make")
    folder = read_options(demo).publish.name
    assert any(words[:2] == ["zip", "-qr"] and words[2:] == [f"dist/{folder}.zip", folder] for words in commands)
    assert any(words[:2] == ["gh", "release"] and f"dist/{folder}.zip" in words for words in commands)


def test_a_suite_is_published_with_licences_and_provenance(tmp_path: Path) -> None:
    folder = tmp_path / "street"
    with serve_drawn_job(tmp_path, per_class=2) as gateway:
        build_report(gateway.context.sessions, gateway.context.store, "drawn", [SERVICE])
        suite = gateway.client.post("/suites", json={"job": "drawn", "name": "street"}).json()
        assert gateway.client.delete("/jobs/drawn").status_code == 204
        options = ("--licence", "CC-BY-4.0", "--attribution", "Drawn by nobody.")
        contrafact(str(gateway.client.base_url), "suites", "publish", "street", folder, *options)
        again = contrafact(str(gateway.client.base_url), "suites", "publish", "street", folder, *options, code=2)
        assert "is not empty" in again.stderr
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
