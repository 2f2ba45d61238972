"""A job with the user's instruction, on the shipped models, from its submission to the report."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from contrafact import Client
from contrafact.cli import app
from embedded.run import run_embedded
from shared.schemas.reports import JobReport
from tinyworld.objects.demo import write_demo

MODEL = "street-classifier-night-bus"
NIGHT = {
    "instruction": "Make it night.", "factor": "weather", "value": "night",
    "phrase": "at night", "replaces": ["during the day", "at sunset"],
}  # fmt: skip


@pytest.mark.slow
def test_an_instruction_is_carried_out_beside_a_null_arm_checked_and_reported(tmp_path: Path) -> None:
    write_demo(tmp_path / "images", ("bus",), 3)
    labels = ["--labels", str(tmp_path / "images" / "manifest.csv"), "--task", "classify the vehicle"]
    method = ["--method", "instruct", "--set", f"instructions={json.dumps([NIGHT])}", "--model", MODEL]
    with run_embedded(tmp_path / "data", "tiny") as system, closing(Client(system.base_url)) as client:
        environment = {"CONTRAFACT_URL": system.base_url}
        command = ["submit", str(tmp_path / "images"), *labels, *method, "--wait"]
        submitted = CliRunner().invoke(app, command, env=environment)
        assert submitted.exit_code == 0, submitted.output
        job = submitted.stdout.splitlines()[0]
        views = list(client.counterfactuals(job, {"verdict": "any"}))
        assert len(views) == 3, "one instruction, three images"
        rendered = [view for view in views if view.image is not None]
        assert len(rendered) >= 2, "words refuse only an image whose caption says that it is night"
        for view in rendered:
            assert [(change.factor, change.to_value) for change in view.changes] == [("weather", "night")]
            assert {"likeness", "match", "caption", "label", "direction"} <= set(view.scores)
            assert view.null_image not in (None, view.image, view.source.image)
            assert not view.verdict.accepted or {opinion.model for opinion in view.predictions} == {MODEL}
            lineage = httpx.get(f"{system.base_url}/jobs/{job}/results/{view.id}", timeout=120).json()["lineage"]
            assert lineage["instruction"] == NIGHT["instruction"]
            assert "exchanges" not in lineage, "no language model is asked"
        results = JobReport.model_validate_json(client.report(job, "json")).results
        assert [(figures.method, figures.model) for figures in results.results] == [("instruct", MODEL)]
        assert results.provisional, "nobody has measured the errors of the checks for this method"
