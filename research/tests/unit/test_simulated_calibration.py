"""Findings of a sound model do not stand once people reviewed a random sample; a weakness under sharp checks does."""

from __future__ import annotations

import numpy as np

from research.simulated_calibration import BLIND_TO_SWAPS, NATURAL, SHARP, Scenario, draw, simulate


def test_a_generators_swaps_stand_only_on_errors_of_constructed_faults() -> None:
    outcomes = simulate(Scenario("swaps", NATURAL, sources=60), (120,), tables=4)
    assert sum(outcomes["constructed faults"]) >= 2
    assert sum(outcomes["120 reviewed"]) == 0


def test_a_weakness_stands_under_sharp_checks_that_are_known() -> None:
    outcomes = simulate(Scenario("weak", SHARP, sources=60, swapped=0.0, drop=0.9), (400,), tables=2)
    assert all(outcomes["400 reviewed"])


def test_a_fault_of_one_cell_does_not_stand_once_its_own_images_are_reviewed() -> None:
    """The checks let every swapped image of one cell pass, which reviews of other cells do not show."""
    outcomes = simulate(Scenario("blind", BLIND_TO_SWAPS, sources=300), (240,), tables=3)
    assert sum(outcomes["240 reviewed"]) >= 2
    assert sum(outcomes["240 reviewed, own"]) == 0


def test_a_true_weakness_stands_once_its_own_images_are_reviewed() -> None:
    outcomes = simulate(Scenario("weak", SHARP, sources=80, swapped=0.0, drop=0.7), (240,), tables=3)
    assert sum(outcomes["240 reviewed, own"]) >= 2


def test_tables_have_the_shares_of_their_scenario() -> None:
    table = draw(Scenario("many", NATURAL, sources=4_000), np.random.default_rng(1))
    assert abs(table.valid[:, 0].mean() - 0.5) < 0.03
    assert abs(table.valid[:, 1:].mean() - 0.9) < 0.01
    assert abs(table.accepted[~table.valid].mean() - NATURAL.invalid) < 0.03
    assert not table.right[:, 0][~table.valid[:, 0]].any(), "the model reads the swapped class"
