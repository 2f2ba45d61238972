"""A planted weakness found by text-to-image, and tested again by inversion and prompt-to-prompt: real small models."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrafact.cli import app
from embedded.run import run_embedded
from shared.schemas.effects import CellEffect
from shared.schemas.results import JobResults
from tinyworld.objects.demo import write_demo

BUSES = 36
MODEL = "street-classifier-night-bus"


def contrafact(url: str, *arguments: object) -> str:
    """stdout of a command that ends well."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"CONTRAFACT_URL": url})
    assert result.exit_code == 0, result.output
    return result.stdout


def to_night(url: str, job: str) -> CellEffect:
    results = JobResults.model_validate_json(contrafact(url, "findings", job, "--json"))
    (figures,) = results.results
    return next(effect for effect in figures.cells if (effect.cell.value, effect.cell.direction) == ("night", "to"))


@pytest.mark.slow
def test_another_editor_tests_the_planted_weakness_again(tmp_path: Path) -> None:
    write_demo(tmp_path / "images", ("bus",), BUSES)
    task = ["--labels", tmp_path / "images" / "manifest.csv", "--task", "classify the vehicle in a street photo"]
    design = ["--design", "balanced", "--value", "weather=night", "--set", 'factors=["weather"]']
    with run_embedded(tmp_path / "data") as system:
        url = system.base_url
        submitted = contrafact(url, "submit", tmp_path / "images", *task, "--model", MODEL, *design, "--wait")
        job = submitted.splitlines()[0]
        first = to_night(url, job)
        assert (first.standing, first.confirmation) == ("weakness", None)
        confirming = contrafact(url, "confirm", job, "--with", "shifts", "--wait").splitlines()[0]
        second, again = to_night(url, job), to_night(url, confirming)
    assert second.confirmation is not None
    assert (second.confirmation.job, second.confirmation.sources) == (confirming, again.sources)
    assert second.confirmation.delta_accuracy == again.delta_accuracy
    assert again.delta_accuracy < -0.3
    assert second.confirmation.verdict == "confirmed"
