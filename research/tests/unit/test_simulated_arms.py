"""An improvement that lost null arms made does not stand, whatever the checks' errors; a true one does once seen."""

from __future__ import annotations

from research.simulated_arms import simulate


def test_lost_arms_make_no_improvement_that_stands() -> None:
    """It stood with the checks' errors alone, and after reviews of edits that did not show the arms."""
    outcomes = simulate(80, 0.5, 0.0, tables=3)
    assert not any(outcomes["nothing"])
    assert not any(outcomes["edits with their arms"])
    assert any(outcomes["edits alone"]), "reviews that do not show the arms let it stand"


def test_a_true_improvement_stands_after_its_pairs_were_reviewed() -> None:
    outcomes = simulate(80, 0.0, 0.6, tables=2)
    assert not any(outcomes["nothing"])
    assert all(outcomes["edits with their arms"])
