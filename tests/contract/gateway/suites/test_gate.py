"""`contrafact gate`: a line per breach, exit codes and files for CI, and the GitHub action that runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest
import yaml
from sqlalchemy import select

from gateway.database.tables import Prediction, SourceImage
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.paths import REPOSITORY
from tests.support.suite_site import add_job, contrafact, predict

ACTION = REPOSITORY / ".github" / "actions" / "gate" / "action.yml"
HOW_TO = REPOSITORY / "docs" / "how-to" / "suites.md"


@pytest.mark.slow
def test_the_gate_ends_with_what_it_found(gateway: Gateway, runs: dict[str, str]) -> None:
    url = str(gateway.client.base_url)
    assert runs
    street = ["gate", "--suite", "street"]
    breached = contrafact(url, *street, "--model", "m2", "--baseline", "m1", "--max-drop", 5, code=1)
    lines = breached.stdout.splitlines()
    assert len(lines) == 2, "buses, and all counterfactuals together"
    assert lines[0].startswith("`bus`")
    assert "2 shown" in breached.stderr
    assert f"contrafact compare {runs['m2']} --other-job {runs['m1']}" in breached.stderr
    assert httpx.get(breached.stderr.split()[-1]).status_code == 200
    passed = contrafact(url, *street, "--model", "m1", "--baseline", runs["m2"])
    assert passed.stdout == ""
    outcome = contrafact(url, *street, "--model", "m2", "--json", code=1)
    assert runs["m2"] in outcome.stderr
    page = httpx.get(outcome.stderr.split()[-1])
    assert (page.status_code, 'class="card' in page.text) == (200, True)
    assert json.loads(outcome.stdout)["breaches"]
    for wrong in (["gate", "--suite", "none", "--model", "m1"], [*street, "--model", "none"], street):
        contrafact(url, *wrong, code=2)
    contrafact("http://127.0.0.1:9", *street, "--model", "m1", code=2)


@pytest.mark.parametrize("every", [1, 2])
def test_a_release_that_is_not_shown_to_be_right_does_not_pass(every: int, tmp_path: Path) -> None:
    """Of no image that it is wrong about anyway could an edit take anything: all cells were "held".

    `every`: which images it is wrong about. One that is wrong about half of both classes passed with code 0.
    """
    with serve_gateway(tmp_path) as gateway:
        add_job(gateway)
        assert gateway.client.post("/suites", json={"job": "made", "name": "street"}).status_code == 201
        run = gateway.client.post("/suites/street/runs", json={"model": "m1"}).json()["id"]
        predict(gateway, run, weak=False)
        with gateway.context.sessions.begin() as session:
            wrong = SourceImage.position // 2 % every == 0  # two images in a row are of both classes
            ids = select(SourceImage.id).where(SourceImage.job_id == run, wrong)
            for row in session.scalars(select(Prediction).where(Prediction.source_image_id.in_(ids))):
                row.predicted, row.scores = "boat", dict.fromkeys(row.scores, 0.0)
                row.detail = {**row.detail, "rank": 2, "truth_probability": 0.05}
        page = tmp_path / "page.md"
        command = ["gate", "--suite", "street", "--model", "m1", "--max-drop", "20", "--markdown", page]
        ended = contrafact(str(gateway.client.base_url), *command, code=2)
        results = gateway.client.get(f"/suites/street/runs/{run}/results", params={"max_drop": 20}).json()
    assert every > 1 or {cell["judgement"] for cell in results["cells"]} == {"undecided"}
    assert results["breaches"] == []
    for cause in ("order of the classes", "label map", "preprocessing"):
        assert cause in ended.stderr
        assert cause in page.read_text()
    assert "✅" not in page.read_text()


def test_the_runs_of_a_suite_are_listed(gateway: Gateway, runs: dict[str, str]) -> None:
    url = str(gateway.client.base_url)
    lines = contrafact(url, "suites", "runs", "street").stdout.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [[runs[model], model] for model in ("m2", "m1")]
    rows = contrafact(url, "suites", "runs", "street", "--json").stdout.splitlines()
    assert [json.loads(row)["id"] for row in rows] == [runs["m2"], runs["m1"]]
    contrafact(url, "suites", "runs", "none", code=3)


def test_the_gate_writes_files_for_ci(
    gateway: Gateway, runs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, junit, markdown, summary = str(gateway.client.base_url), *(tmp_path / name for name in ("a.xml", "a.md", "s"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    summary.write_text("before\n")
    command = ["gate", "--suite", "street", "--model", "m2", "--baseline", runs["m1"], "--junit", junit]
    breaches = contrafact(url, *command, "--markdown", markdown, code=1).stdout.splitlines()
    suite = ElementTree.parse(junit).getroot()[0]
    assert (suite.get("name"), suite.get("failures"), suite.get("errors")) == ("street", "2", "0")
    failures = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    assert [failure.text for failure in failures.values() if failure is not None] == breaches
    assert failures["bus, time of day to night"] is not None
    assert failures["originals"] is None
    page = markdown.read_text()
    assert runs["m2"] in page
    assert summary.read_text() == f"before\n{page}"
    assert all(breach.replace("\N{NO-BREAK SPACE}", " ") in page for breach in breaches)
    contrafact(url, *command, "--max-drop", 95)
    assert ElementTree.parse(junit).getroot()[0].get("failures") == "0"
    missing = contrafact(url, *command, "--markdown", tmp_path / "none" / "a.md", code=2)
    assert "a.md cannot be written" in missing.stderr


def _validate(schema: str, path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_the_action_is_one_that_github_takes(tmp_path: Path) -> None:
    _validate("vendor.github-actions", ACTION)
    wrong = yaml.safe_load(ACTION.read_text())
    del wrong["runs"]["steps"][0]["shell"]
    (tmp_path / "action.yml").write_text(yaml.safe_dump(wrong))
    with pytest.raises(AssertionError, match="shell"):
        _validate("vendor.github-actions", tmp_path / "action.yml")


def test_the_workflow_in_the_docs_is_one_that_github_takes_and_uses_inputs_of_the_action(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)
    (workflow,) = (block for block in blocks if ".github/actions/gate" in block)
    (tmp_path / "gate.yml").write_text(workflow)
    _validate("vendor.github-workflows", tmp_path / "gate.yml")
    steps = yaml.safe_load(workflow)["jobs"]["gate"]["steps"]
    (used,) = (step["with"] for step in steps if ".github/actions/gate" in step.get("uses", ""))
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    assert {name for name, options in inputs.items() if options.get("required")} <= set(used) <= set(inputs)


@pytest.mark.slow
def test_the_action_runs_the_gate(gateway: Gateway, runs: dict[str, str], tmp_path: Path) -> None:
    """Its last step in bash, with the inputs in the environment as GitHub puts them there."""
    action = yaml.safe_load(ACTION.read_text())
    arguments = {"url": str(gateway.client.base_url), "suite": "street", "model": "m2", "baseline": runs["m1"]}
    inputs = {name: arguments.get(name, options.get("default")) for name, options in action["inputs"].items()}
    step = action["runs"]["steps"][1]
    environment = {
        name: inputs[re.sub(r"\$\{\{ inputs\.([a-z-]+) }}", r"\1", value)] for name, value in step["env"].items()
    }
    program = tmp_path / "contrafact" / "bin" / "contrafact"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from contrafact.cli import main; main()" "$@"\n')
    program.chmod(0o755)
    python_path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    paths = {"PATH": os.environ["PATH"], "PYTHONPATH": python_path, "RUNNER_TEMP": str(tmp_path)}
    summary = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    ended = subprocess.run(
        bash, env=environment | paths | summary, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("`bus`")
    assert (tmp_path / "summary.md").read_text() == (tmp_path / inputs["markdown"]).read_text()
    assert (tmp_path / inputs["junit"]).is_file()
