"""The simulation of the tests: its tables have the losses that they state, and its rules are those of the product."""

from __future__ import annotations

import numpy as np

from gateway.analysis.effects import Differences
from gateway.analysis.findings import assess
from research.simulated_tests import Tables, counts, tiers
from shared.schemas.effects import Cell


def test_tables_lose_what_they_state() -> None:
    tables = Tables(30, 0.8, (0.4, 0.05), 0.8)
    lost, gained = counts(tables, 200, np.random.default_rng(1))
    effects = (gained - lost).mean(axis=0) / tables.images
    assert lost.shape == (200, 28)
    np.testing.assert_allclose(effects, -tables.loss, atol=0.03)


def test_the_tiers_are_those_of_a_report() -> None:
    images = 30
    lost, gained = counts(Tables(images, 0.95, (0.5, 0.3, 0.2, 0.0), 0.0), 3, np.random.default_rng(2))
    weak, suspected = tiers(lost, gained, images, discard=False)
    assert weak.any()
    assert suspected.any()
    for table in range(len(lost)):
        cells = {}
        for place in range(28):
            steps = [lost[table, place], gained[table, place], images - lost[table, place] - gained[table, place]]
            changes = np.repeat([-1.0, 1.0, 0.0], steps)
            cell = Cell(label="bus", factor="weather", value=str(place), direction="to")
            cells[cell] = Differences(np.arange(images), changes, changes, images, null_accuracy=0.95)
        standing = {effect.cell.value: effect.standing for effect in assess(cells, 1)}
        assert [standing[str(place)] == "weakness" for place in range(28)] == weak[table].tolist()
        assert [standing[str(place)] == "suspected weakness" for place in range(28)] == suspected[table].tolist()
