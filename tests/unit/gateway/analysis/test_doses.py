"""Whether an effect grows with the dose, and whether it goes when the edit is undone."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.doses import Return, Trend, dose_trend, interval_of, return_verdict, trend_verdict
from shared.schemas.effects import Interval

DOSES = np.array([0.5, 1.0, 1.5])


def interval(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, level=0.95, kind="betting")


def test_the_trend_is_the_rise_of_each_images_line_and_lies_in_its_interval() -> None:
    effects = np.array([[0.0, -1.0, -1.0]] * 8 + [[0.0, 0.0, -1.0]] * 8 + [[0.0, 0.0, 0.0]] * 4)
    trend, limits = dose_trend(effects, DOSES, seed=1)
    assert trend == pytest.approx(-16 / 20), "with three equal steps the rise is the last minus the first"
    assert limits is not None
    assert limits.low < trend < limits.high < 0
    assert trend_verdict(limits, effects[:, 1].mean()) == "grows"


def test_a_rise_of_both_outcomes_keeps_the_interval_within_what_can_be() -> None:
    effects = np.array([[1.0, 0.0, -1.0]] * 20)
    trend, limits = dose_trend(effects, DOSES, seed=1)
    assert trend == pytest.approx(-2)
    assert limits is not None
    assert limits.low == pytest.approx(-2)


def test_doses_without_equal_steps_weigh_by_their_distance() -> None:
    effects = np.array([[0.0, 0.2, 1.0]] * 12)
    trend, _ = dose_trend(effects, np.array([0.5, 1.0, 3.0]), seed=1)
    slope = np.polyfit([0.5, 1.0, 3.0], effects[0], 1)[0]
    assert trend == pytest.approx(2.5 * slope)


def test_few_images_have_no_interval() -> None:
    trend, limits = dose_trend(np.full((11, 3), -1.0), DOSES, seed=1)
    assert (trend, limits) == (0.0, None)
    assert trend_verdict(limits, -1.0) == "too few images"
    assert interval_of(np.zeros(11), 1) is None
    assert return_verdict(None, interval(0.2, 0.9)) == "too few images"


@pytest.mark.parametrize(
    ("limits", "effect", "verdict"),
    [
        ((-0.5, -0.1), -0.6, "grows"),
        ((0.1, 0.5), -0.6, "shrinks"),
        ((0.1, 0.5), 0.6, "grows"),
        ((-0.5, -0.1), 0.6, "shrinks"),
        ((-0.1, 0.1), -0.6, "no trend established"),
    ],
)
def test_growth_is_away_from_zero(limits: tuple[float, float], effect: float, verdict: Trend) -> None:
    assert trend_verdict(interval(*limits), effect) == verdict


@pytest.mark.parametrize(
    ("remaining", "regained", "verdict"),
    [
        ((-0.2, 0.1), (0.3, 0.9), "returns"),
        ((-0.6, -0.2), (0.1, 0.5), "returns in part"),
        ((-0.9, -0.3), (-0.2, 0.2), "does not return"),
        ((-0.3, 0.1), (-0.1, 0.4), "undecided"),
        ((-0.3, -0.04), (0.04, 0.4), "undecided"),
    ],
)
def test_the_verdict_on_the_return_compares_with_source_and_full_dose_beyond_five_points(
    remaining: tuple[float, float], regained: tuple[float, float], verdict: Return
) -> None:
    assert return_verdict(interval(*remaining), interval(*regained)) == verdict
