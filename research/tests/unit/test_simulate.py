"""The simulation of `make simulate` at a small size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gateway.analysis.effects import differences
from research.simulate import RESULTS, Simulated, one_run, record
from research.simulated_jobs import Setting, grid, job, truths
from research.system.packed import read_text
from shared.schemas.effects import Cell

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"
NIGHT = Cell(label="bus", factor="weather", value="night", direction="to")


def test_the_tables_have_the_effects_rates_and_correlation_that_they_are_made_with() -> None:
    setting = Setting(sources=3_000, siblings=3, rate=0.8, correlation=0.5, drop=0.3)
    outcomes = job(setting, np.random.default_rng(1))
    for cell, effect in truths(setting).items():
        assert differences(outcomes, outcomes.cells[cell]).correct.mean() == pytest.approx(effect, abs=0.03)
    first = np.unique(outcomes.source, return_index=True)[1]
    null, counterfactual = outcomes.null[first], outcomes.counterfactual[first]
    assert null.mean() == pytest.approx(0.8, abs=0.02)
    cars = outcomes.source[first] >= 3_000
    assert np.corrcoef(null[cars], counterfactual[cars])[0, 1] == pytest.approx(0.5, abs=0.06)


def test_a_large_drop_is_a_true_discovery() -> None:
    shown, result = one_run(Setting(40, 3, 0.95, 0.5, 0.95), seed=3)
    assert result.findings >= 1
    assert result.findings_false == result.rejected_false == 0
    assert sum(cell.quantity == "effect" for cell in shown) == 8


def test_a_small_simulation_holds() -> None:
    """A twelfth of the grid, once: far too few for 93 %, enough to see an interval or a test that is broken."""
    simulated = Simulated(every=12)
    simulated.repeat()
    rows = {(row.quantity, row.by): row for row in simulated.rows() if row.by == "all"}
    for quantity in ("effect", "rate over counterfactuals", "rate over null arms", "effect among valid"):
        assert rows[quantity, "all"].mean > 0.85, quantity
    assert rows["false share of rejected cells (no effect)", "all"].mean < 0.15
    assert rows["false share of findings (within 5 points)", "all"].mean < 0.1
    assert len(list(grid())) == 448


def test_a_record_says_how_many_passes_are_done_of_how_many() -> None:
    """A run of six passes that was stopped after the first was once published as one of six."""
    simulated = Simulated(every=112)
    simulated.repeat()
    stopped = record(simulated, [], passes=2, power_runs=5)
    assert (stopped["passes_done"], stopped["passes_requested"]) == (1, 2)
    simulated.repeat()
    finished = record(simulated, [], passes=2, power_runs=5)
    assert finished["passes_done"] == finished["passes_requested"] == 2
    assert finished["runs"] == 2 * stopped["runs"]
    assert finished["command"] == "python -m research.simulate --runs 2 --power-runs 5"


def test_the_published_simulation_is_complete_and_the_page_names_its_command_and_numbers() -> None:
    published = json.loads(read_text(RESULTS))
    assert published["passes_done"] == published["passes_requested"]
    page = " ".join(PAGE.read_text("utf-8").split())
    assert published["command"] in page
    assert f"{published['runs']:,} tables, {published['intervals']:,} intervals" in page
