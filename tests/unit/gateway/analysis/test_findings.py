"""Findings: the family of tests, selection, and weak cells."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from gateway.analysis.effects import Differences
from gateway.analysis.findings import assess
from shared.schemas.effects import Cell
from tests.support.effects import cell, differences


def graded(cells: int) -> dict[Cell, Differences]:
    """Cells of 20 sources. More and more of them are worse, and a quarter as many better."""
    return {cell(str(n)): differences(np.repeat([-1, 0, 1], [n, 20 - n - n // 4, n // 4])) for n in range(cells)}


@pytest.mark.parametrize("size", [1, 2, 7, 15])
def test_q_values_equal_those_of_statsmodels(size: int) -> None:
    effects = assess(graded(size), seed=size)
    p_values = np.array([effect.p_value for effect in effects])
    _, expected, _, _ = multipletests(p_values, alpha=0.05, method="fdr_bh")
    np.testing.assert_allclose(np.array([effect.q_value for effect in effects], float), expected, atol=1e-12, rtol=0)


def test_a_family_without_cells_has_no_findings() -> None:
    assert assess({}, seed=1) == []
    (effect,) = assess({cell("rain"): differences(-np.ones(5))}, seed=1)
    assert (effect.standing, effect.q_value) == ("too few images", None)


def test_a_planted_weakness_is_the_first_finding() -> None:
    cells = {
        cell("rain"): differences(np.repeat([-1, 0], [1, 15])),
        cell("night"): differences(np.repeat([-1, 0], [14, 2])),
        cell("fog"): differences(np.repeat([-1, 0, 1], [2, 12, 2])),
        cell("sunset"): differences(np.repeat([1, 0], [13, 3])),
        cell("snow"): differences(np.repeat([-1, 0], [3, 1])),
    }
    effects = assess(cells, seed=1)
    assert [effect.standing for effect in effects] == [
        "weakness", "improvement", "nothing found", "nothing found", "too few images",
    ]  # fmt: skip
    first = effects[0]
    assert first.cell.value == "night"
    assert (first.sources, first.delta_accuracy) == (16, -14 / 16)
    assert first.breakdown is not None
    assert first.selected_interval is not None
    assert first.interval is not None
    assert first.selected_interval.level == pytest.approx(1 - 0.05 * 2 / 4)
    assert first.selected_interval.high >= first.interval.high
    assert effects[-1].p_value is None
    assert effects[-1].interval is None
    assert effects == assess(dict(reversed(cells.items())), seed=1)


def test_a_certain_but_small_effect_is_no_finding() -> None:
    effects = assess({cell("rain"): differences(np.repeat([-1, 0], [40, 960]))}, seed=1)
    assert effects[0].q_value is not None
    assert effects[0].q_value > 0.05
    assert effects[0].standing == "nothing found"


def test_nothing_eligible_is_nothing_found() -> None:
    (effect,) = assess({cell("night"): differences(-np.ones(11))}, seed=1)
    assert effect.standing == "too few images"
    assert effect.images_needed == 12
    assert assess({}, seed=1) == []


def test_false_findings_stay_rare_and_true_ones_are_found() -> None:
    """Eight cells without effect beside two with one: the mean share of false findings stays under 5 %."""
    random = np.random.default_rng(5)
    false_shares, true_findings = [], 0
    for trial in range(60):
        cells = {cell(f"null {k}"): differences(random.choice([-1, 0, 1], 20, p=[0.2, 0.6, 0.2])) for k in range(8)}
        cells |= {cell(f"true {k}"): differences(random.choice([-1, 0], 20, p=[0.8, 0.2])) for k in range(2)}
        values = [e.cell.value for e in assess(cells, trial) if e.standing in ("weakness", "improvement")]
        false_shares.append(sum(v.startswith("null") for v in values) / max(1, len(values)))
        true_findings += sum(v.startswith("true") for v in values)
    assert np.mean(false_shares) <= 0.05
    assert true_findings / 120 > 0.9
