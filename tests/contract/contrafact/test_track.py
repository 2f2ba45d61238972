"""`contrafact track`: a job in a local MLflow and an offline run of Weights & Biases."""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from contrafact.client import Client
from contrafact.tracked_job import TrackedJob, load_tracked_job, metrics, parameters, tracked_data
from shared.schemas.effects import CellEffect
from shared.schemas.metrics import OriginalsCheck
from shared.schemas.results import JobResults
from tests.support.drawn_job import serve_drawn_job
from tests.support.gateway_under_test import Gateway
from tests.support.paths import REPOSITORY

NEEDS_MLFLOW = pytest.mark.skipif(find_spec("mlflow") is None, reason="the extra `mlflow` is not installed")
NEEDS_WANDB = pytest.mark.skipif(find_spec("wandb") is None, reason="the extra `wandb` is not installed")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A finished job `drawn` with a finding."""
    with serve_drawn_job(tmp_path_factory.mktemp("gateway"), per_class=16) as served:
        yield served


@pytest.fixture(scope="module")
def tracked(gateway: Gateway) -> TrackedJob:
    """What trackers store of the job."""
    url = str(gateway.client.base_url)
    client = Client(url)
    job = load_tracked_job(client, "drawn", url)
    client.close()
    return job


def program(directory: Path, *arguments: object, code: int = 0) -> str:
    """Run Python in a process of its own, because trackers start threads and servers; return its stdout."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        "HOME": str(directory),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(directory),
        "WANDB_SILENT": "true",
    }
    command = [sys.executable, *map(str, arguments)]
    ended = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == code, ended.stderr[-3_000:]
    return ended.stdout + (ended.stderr if code else "")


def track(gateway: Gateway, directory: Path, *options: str, code: int = 0) -> str:
    command = ["-c", "from contrafact.cli import main; main()", "track", "drawn"]
    return program(directory, *command, "--url", gateway.client.base_url, *options, code=code)


def read_stored(directory: Path, *arguments: object) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(
        program(directory, "-m", "tests.support.tracker_stores", *arguments).splitlines()[-1]
    )
    return stored


@pytest.mark.slow
def test_every_tested_effect_has_the_ends_of_its_interval(gateway: Gateway, tracked: TrackedJob) -> None:
    name = "night-bus/dillema/bus/weather to night"
    results = JobResults.model_validate(gateway.client.get("/jobs/drawn/results").json()["metrics"])
    (effect,) = results.results[0].findings
    assert effect.interval is not None
    assert effect.selected_interval is not None
    logged = [tracked.metrics[f"{name}/{part}"] for part in ("low", "effect", "high", "images")]
    assert logged == [effect.interval.low, effect.delta_accuracy, effect.interval.high, effect.sources]
    assert tracked.metrics[f"{name}/selected low"] == effect.selected_interval.low
    tested = sum(cell.interval is not None for result in results.results for cell in result.cells)
    assert sum(metric.endswith("/effect") for metric in tracked.metrics) == tested
    assert tracked.metrics["night-bus/dillema/weaknesses"] == 1
    assert tracked.parameters["seed"] == "7"
    assert set(tracked.files) == {"report.html", "report.md", "report.json"}


def test_a_model_without_a_verdict_has_no_number_of_weaknesses(gateway: Gateway) -> None:
    """One that was never right was logged with 0 weaknesses, and one without ground truth with 100 % accuracy."""
    results = JobResults.model_validate(gateway.client.get("/jobs/drawn/results").json()["metrics"])
    check = OriginalsCheck(standing="unsound", sentence="Not testable: right on 0 %.")
    result = results.results[0].model_copy(update={"originals": check, "relation": "metamorphic"})
    results = results.model_copy(update={"results": [result]})
    assert not [name for name in metrics(results) if name.endswith(("/weaknesses", "/findings")) or "/accuracy" in name]
    assert parameters(results)["verdict of night-bus/dillema"] == check.sentence


def test_names_that_trackers_would_refuse_are_written_otherwise_and_stay_apart(gateway: Gateway) -> None:
    results = JobResults.model_validate(gateway.client.get("/jobs/drawn/results").json()["metrics"])
    (effect,) = results.results[0].findings

    def labelled(label: str) -> CellEffect:
        return effect.model_copy(update={"cell": effect.cell.model_copy(update={"label": label})})

    def names(*labels: str) -> list[str]:
        result = results.results[0].model_copy(update={"cells": list(map(labelled, labels))})
        names = list(metrics(results.model_copy(update={"results": [result]})))
        return [name for name in names if name.endswith("/effect")]

    labels = ["a/b", "a:b", "a_b", "é" * 300, "車", "船", "कि", "की", "..", *(f"x/{number}" for number in range(1_100))]
    together = names(*labels)
    assert len(set(together)) == len(labels)
    assert together == [name for label in labels[:9] for name in names(label)] + together[9:], "whatever is beside them"
    assert [name.split("/")[2] for name in together[2:6]] == ["a_b", together[3].split("/")[2], "車", "船"]
    assert len({name.casefold() for name in names("Bus", "bus", "tram")}) == 3, "disks that ignore case"
    for name in together:  # MLflow's rule
        assert len(name) <= 250
        assert re.fullmatch(r"[/\w.\- ]*", name)
        assert posixpath.normpath(name) == name


@pytest.mark.slow
def test_the_digest_is_of_images_and_labels_in_any_order(gateway: Gateway, tracked: TrackedJob) -> None:
    client = Client(str(gateway.client.base_url))
    views = list(client.counterfactuals("drawn", {"verdict": "counted"}))
    client.close()
    renamed = [view.model_copy(update={"id": f"x{number}"}) for number, view in enumerate(views)]
    assert tracked_data("other", "", reversed(renamed)).digest == tracked.data.digest
    assert (tracked.data.images, len(tracked.data.digest)) == (len(views), 36)
    assert tracked_data("other", "", views[1:]).digest != tracked.data.digest


@pytest.mark.slow
def test_a_tracker_is_named_and_installed(gateway: Gateway, tmp_path: Path) -> None:
    assert "--mlflow" in track(gateway, tmp_path, code=2)
    if find_spec("mlflow") is None:
        assert "contrafact[mlflow]" in track(gateway, tmp_path, "--mlflow", "sqlite:///a.db", code=2)
    if find_spec("wandb") is None:
        assert "contrafact[wandb]" in track(gateway, tmp_path, "--wandb", code=2)


@pytest.mark.slow
@NEEDS_MLFLOW
def test_a_run_of_mlflow(gateway: Gateway, tracked: TrackedJob, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = track(gateway, tmp_path, "--mlflow", uri, "--experiment", "street").split()[-1]
    stored = read_stored(tmp_path, "mlflow", uri, run)
    assert [stored[name] for name in ("experiment", "status", "digest")] == ["street", "FINISHED", tracked.data.digest]
    assert stored["metrics"] == pytest.approx(tracked.metrics)
    assert stored["parameters"]["task description"] == "classify the main thing in the picture"
    assert set(stored["files"]) == {*tracked.files, "dataset.jsonl"}
    assert stored["page"] == tracked.files["report.html"].decode()


UNSENDABLE = """
import sys
from contrafact.mlflow_tracker import log_to_mlflow
from contrafact.tracked_job import TrackedData, TrackedJob
from mlflow.tracking import MlflowClient
uri = sys.argv[1]
for name, error in (("no-such-folder/report.html", ValueError), ("report.html", TypeError)):
    files = {name: b"" if error is ValueError else "no bytes"}
    try:
        log_to_mlflow(TrackedJob("job", {}, {}, files, TrackedData("data", "d" * 36, "here", 0, b"")), uri)
    except error as raised:
        assert type(raised) is error, raised
client = MlflowClient(tracking_uri=uri)
print([run.info.status for run in client.search_runs([client.get_experiment_by_name("contrafact").experiment_id])])
"""


@pytest.mark.slow
@NEEDS_MLFLOW
def test_a_run_of_mlflow_that_cannot_be_filled_has_failed(tmp_path: Path) -> None:
    """It stayed RUNNING after any error but MLflow's own."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert program(tmp_path, "-c", UNSENDABLE, uri).splitlines()[-1] == "['FAILED', 'FAILED']"


FAILS_FIRST = """
from contrafact.tracked_job import TrackedData, TrackedJob
from contrafact.wandb_tracker import log_to_wandb
data = TrackedData("data", "d" * 36, "", 0, b"")
metrics = {"m/lance/車/effect": 1.0, "m/lance/船/effect": 2.0}
for content in ("no bytes", b"bytes"):
    try:
        log_to_wandb(TrackedJob("job", {}, metrics, {"report.html": content}, data))
    except TypeError as error:
        print(error)
"""


@pytest.mark.slow
@NEEDS_WANDB
def test_a_run_of_wandb_that_cannot_be_filled_has_failed_and_the_next_one_has_not(tmp_path: Path) -> None:
    assert "bytes" in program(tmp_path, "-c", FAILS_FIRST)
    logs = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"), key=lambda log: log.stat().st_mtime_ns)
    stored = [read_stored(tmp_path, "wandb", log) for log in logs]
    assert [run["exit code"] for run in stored] == [1, 0]
    assert [stored[1]["metrics"][f"m/lance/{name}/effect"] for name in "車船"] == [1.0, 2.0]


@pytest.mark.slow
@NEEDS_WANDB
def test_an_offline_run_of_wandb(gateway: Gateway, tracked: TrackedJob, tmp_path: Path) -> None:
    assert track(gateway, tmp_path, "--wandb", "--project", "street").split()
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    stored = read_stored(tmp_path, "wandb", log)
    assert {name: stored["metrics"][name] for name in tracked.metrics} == pytest.approx(tracked.metrics)
    assert stored["artifacts"]["dataset"]["metadata"]["digest"] == tracked.data.digest
    assert set(stored["artifacts"]["report"]["files"]) == set(tracked.files)
