"""Thresholds of several checks at once, and verdicts under them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from gateway.analysis.thresholds import (
    REFUSED,
    VALID,
    ScoredImages,
    auroc,
    fit,
    fit_by_factor,
    held_out_margins,
    margins,
)


def images(seed: int, n: int = 60) -> ScoredImages:
    """Images of three kinds; each invalid kind is low in one of two checks."""
    random = np.random.default_rng(seed)
    kind = np.arange(n) % 3
    scores = random.normal(size=(n, 2))
    scores[kind == 1, 0] -= 2
    scores[kind == 2, 1] -= 2
    factors = [("weather", "domain")[place % 2 : place % 2 + 1] for place in range(n)]
    return ScoredImages(("structure", "label"), scores, kind, random.random(n) > 0.05, factors)


@pytest.mark.parametrize("seed", range(5))
def test_no_other_set_of_candidates_accepts_fewer_invalid_images(seed: int) -> None:
    scored = images(seed)
    valid = scored.kind == VALID

    def rates(lowest: tuple[float, ...]) -> tuple[float, float]:
        passed = (scored.scores >= np.array(lowest)).all(axis=1) & scored.passable
        refused = float((scored.passable & valid & ~passed).sum()) / valid.sum()
        return refused, float(np.mean([passed[scored.kind == kind].mean() for kind in (1, 2)]))

    quantiles = [
        np.quantile(scored.scores[valid, place], np.linspace(0, 0.13, 8), method="lower") - 1e-4 for place in (0, 1)
    ]
    refused, accepted = rates(tuple(fit(scored).values()))
    assert refused <= REFUSED
    assert (
        accepted
        <= min(rate for valid_refused, rate in map(rates, itertools.product(*quantiles)) if valid_refused <= REFUSED)
        + 1e-9
    )


def test_a_check_that_missed_an_image_gets_no_threshold() -> None:
    scored = images(1)
    scored.scores[3, 1] = np.nan
    assert list(fit(scored)) == ["structure"]


def test_the_strictest_threshold_of_an_edits_factors_counts_and_an_impassable_image_is_refused() -> None:
    scored = ScoredImages(
        ("label",),
        np.array([[0.5], [0.5], [0.5], [np.nan]]),
        np.zeros(4, np.int64),
        np.array([True, True, False, True]),
        [("weather",), ("weather", "domain"), ("weather",), ("object",)],
    )
    thresholds = {"label": {"default": 0.0, "weather": 0.4, "domain": 0.6}}
    assert margins(scored, thresholds, {"label": 0.1}).tolist() == pytest.approx([1.0, -1.0, -1.0, np.inf])


def test_each_half_is_judged_by_the_other() -> None:
    scored, half = images(2, 120), np.arange(120) % 4 < 2
    least = held_out_margins(scored, half)
    others = scored.subset(~half)
    valid = others.scores[others.kind == VALID]
    expected = margins(
        scored.subset(half), fit_by_factor(others), dict(zip(scored.checks, valid.std(axis=0).tolist(), strict=True))
    )
    assert least[half].tolist() == pytest.approx(expected.tolist())


def test_area_under_the_curve_counts_pairs() -> None:
    assert auroc([2, 3], [1, 2]) == pytest.approx(0.875)
    assert math.isnan(auroc([], [1.0]))
