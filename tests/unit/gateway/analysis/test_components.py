"""Variance components of nested differences: recovered from known truth, and what the next rendering buys."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.components import Nested, RenderingCost, variance_components

COST = RenderingCost(source=20.0, rendering=20.0)
TRUTH = (0.09, 0.04, 0.01)


def nested(seed: int, sources: int, edits: int, seeds: int, truth: tuple[float, float, float] = TRUTH) -> Nested:
    """Unbalanced: a tenth of the rows is missing. Two cells with different means."""
    random = np.random.default_rng(seed)
    spread = np.sqrt(truth)
    source = np.repeat(np.arange(sources), edits * seeds)
    edit = np.repeat(np.arange(sources * edits), seeds)
    cell = edit % 2
    values = random.normal(0, spread[0], sources)[source] + random.normal(0, spread[1], sources * edits)[edit]
    values += random.normal(0, spread[2], len(source)) + np.array([0.0, -0.4])[cell]
    present = random.random(len(source)) < 0.9
    return Nested(values[present], cell[present], source[present], edit[present])


def test_the_components_that_made_the_differences_are_recovered() -> None:
    figures = variance_components(nested(1, 600, 4, 3), COST, 1)
    assert figures is not None
    assert figures.source is not None
    assert figures.edit is not None
    assert figures.seed is not None
    values = [part.value for part in (figures.source, figures.edit, figures.seed)]
    assert values == pytest.approx(TRUTH, rel=0.2)


def test_estimates_are_unbiased_and_intervals_cover() -> None:
    figures = [variance_components(nested(seed, 40, 3, 2), COST, seed) for seed in range(60)]
    for name, truth in zip(("source", "edit", "seed"), TRUTH, strict=True):
        parts = [getattr(component, name) for component in figures]
        assert np.mean([part.value for part in parts]) == pytest.approx(truth, rel=0.15)
        assert np.mean([part.low <= truth <= part.high for part in parts]) > 0.8


def test_without_several_seeds_or_edits_their_component_is_not_told_apart() -> None:
    one_seed = variance_components(nested(2, 300, 4, 1), COST, 1)
    assert one_seed is not None
    assert one_seed.seed is None
    assert one_seed.edit is not None
    assert one_seed.edit.value == pytest.approx(0.05, rel=0.25)
    one_edit = variance_components(nested(2, 300, 1, 1), COST, 1)
    assert one_edit is not None
    assert (one_edit.edit, one_edit.seed) == (None, None)
    assert variance_components(nested(2, 11, 4, 2), COST, 1) is None


@pytest.mark.parametrize(
    ("truth", "cost", "best"),
    [
        ((0.2, 0.001, 0.001), RenderingCost(0.0, 20.0), "sources"),
        ((0.001, 0.2, 0.001), RenderingCost(400.0, 20.0), "edits"),
        ((0.001, 0.001, 0.3), RenderingCost(400.0, 20.0), "edits"),
    ],
)
def test_the_next_rendering_goes_where_it_removes_most_variance(
    truth: tuple[float, float, float], cost: RenderingCost, best: str
) -> None:
    """A new edit has a new seed too, so a seed is never the better buy."""
    figures = variance_components(nested(3, 200, 3, 2, truth), cost, 1)
    assert figures is not None
    assert (figures.next[0].buy, figures.next[0].gain) == (best, 1.0)
    gains = {step.buy: step.gain for step in figures.next}
    assert gains["seeds"] <= gains["edits"]
