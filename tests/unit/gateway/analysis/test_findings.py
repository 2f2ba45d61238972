"""Findings: the family of tests, selection, and weak cells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gateway.analysis.certainty import LEVEL, mean_interval
from gateway.analysis.effects import Differences
from gateway.analysis.findings import assess
from gateway.analysis.limits import BEYOND
from shared.schemas.effects import Cell, CellEffect
from shared.words.verdicts import is_suspected
from tests.support.effects import cell, differences


def graded(cells: int) -> dict[Cell, Differences]:
    """Cells of 20 sources. More and more of them are worse, and a quarter as many better."""
    return {cell(str(n)): differences(np.repeat([-1, 0, 1], [n, 20 - n - n // 4, n // 4])) for n in range(cells)}


@pytest.mark.parametrize("size", [1, 2, 7, 15])
def test_q_values_are_those_of_benjamini_and_hochberg(size: int) -> None:
    """The smallest m · p / rank among the p-values that are no smaller."""
    effects = assess(graded(size), seed=size)
    p_values = np.array([effect.p_value for effect in effects], float)
    scaled = [(p, size * p / np.sum(p_values <= p)) for p in p_values]
    expected = [min(value for other, value in scaled if other >= p) for p in p_values]
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
    assert first.selected_interval.level == pytest.approx(1 - 0.05 / 4), "one weakness among four cells"
    assert first.selected_interval.high >= first.interval.high
    assert effects[-1].p_value is None
    assert effects[-1].interval is None
    assert effects == assess(dict(reversed(cells.items())), seed=1)


@pytest.mark.slow
def test_a_certain_but_small_effect_is_no_finding() -> None:
    effects = assess({cell("rain"): differences(np.repeat([-1, 0], [40, 960]))}, seed=1)
    assert effects[0].q_value is not None
    assert effects[0].q_value > 0.05
    assert effects[0].standing == "suspected weakness", "something is lost, but not more than 5 points"


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
        cells = {name: replace(pairs, null_accuracy=0.9) for name, pairs in cells.items()}  # right or wrong: exact
        values = [e.cell.value for e in assess(cells, trial) if e.standing in ("weakness", "improvement")]
        false_shares.append(sum(v.startswith("null") for v in values) / max(1, len(values)))
        true_findings += sum(v.startswith("true") for v in values)
    assert np.mean(false_shares) <= 0.05
    assert true_findings / 120 > 0.9


@pytest.mark.parametrize("family", [1, 3, 10, 38])
@pytest.mark.parametrize("lost", [0.3, 0.38, 0.5, 0.7, 1.0])
def test_the_images_needed_are_those_with_which_the_drop_becomes_a_weakness(lost: float, family: int) -> None:
    """ "About 12" stood at −50 points, which became a weakness with 14 images alone and with 26 among 38 cells."""
    needed = drop_among(family, lost, 100).images_needed
    assert needed is not None
    assert drop_among(family, lost, round(1.05 * needed) + 1).standing == "weakness"
    assert drop_among(family, lost, round(0.85 * needed) - 1).standing != "weakness"


def drop_among(family: int, lost: float, images: int) -> CellEffect:
    """A cell that loses this share of its images, among others without an effect."""
    others = {cell(f"still {k}"): differences(np.zeros(12)) for k in range(family - 1)}
    count = round(lost * images)
    drop = differences(np.repeat([-1, 0], [count, images - count]))
    return next(e for e in assess({cell("night"): drop, **others}, seed=1) if e.cell == cell("night"))


def test_a_drop_that_is_no_finding_always_lacks_images() -> None:
    """An estimate below the number of its images hid a drop of 50 points from what would settle it."""
    for images in (8, 10, 12, 14, 16, 18):
        night = drop_among(10, 0.5, images)
        assert night.standing in ("suspected weakness", "nothing found", "too few images")
        assert night.images_missing is not None


@pytest.mark.parametrize("images", [12, 20, 40, 80])
def test_noise_is_seldom_a_suspected_drop(images: int) -> None:
    """A model that loses and gains one image in ten at random: one rule for verdicts, gates and comparisons."""
    draws = np.random.default_rng(3).multinomial(images, [0.1, 0.8, 0.1], size=4_000)
    kinds, counts = np.unique(draws, axis=0, return_counts=True)
    suspected = 0
    for (lost, same, gained), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        changes = np.repeat([-1.0, 0.0, 1.0], [lost, same, gained])
        if changes.mean() < -BEYOND:  # the interval is needed for no other
            suspected += count * is_suspected(changes.mean(), mean_interval(changes, LEVEL, 1), images)
    assert suspected / 4_000 < 0.01 + 2 * np.sqrt(0.01 * 0.99 / 4_000)
