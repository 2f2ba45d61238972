"""Errors of the checks from a judged random sample: known rates are recovered, few images say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gateway.analysis.calibration import (
    LEAST_OF_EACH,
    JudgedSample,
    class_error_rates,
    error_rates,
    fit_held_out,
    half_width,
    more_needed,
    separation,
)
from gateway.analysis.thresholds import VALID, ScoredImages

ACCEPTED_IF_VALID, ACCEPTED_IF_INVALID = 0.85, 0.4


def judged(
    random: np.random.Generator, n: int, valid: float = 0.6, factors: tuple[str, ...] = ("weather",)
) -> JudgedSample:
    """n edits of as many sources; the checks err at the rates above."""
    is_valid = random.random(n) < valid
    accepted = random.random(n) < np.where(is_valid, ACCEPTED_IF_VALID, ACCEPTED_IF_INVALID)
    return JudgedSample(is_valid, accepted, np.arange(n), [(factors[place % len(factors)],) for place in range(n)])


@pytest.mark.parametrize("siblings", [1, 3])
def test_the_intervals_hold_known_error_rates_95_times_of_100(siblings: int) -> None:
    random = np.random.default_rng(siblings)
    runs, covered = 400, np.zeros(2)
    for _ in range(runs):
        sample = judged(random, 120)
        # Siblings share verdicts, as edits of one source image tend to.
        sample = JudgedSample(
            np.repeat(sample.valid[: 120 // siblings], siblings),
            np.repeat(sample.accepted[: 120 // siblings], siblings),
            np.repeat(np.arange(120 // siblings), siblings),
            sample.factors,
        )
        pooled = error_rates(sample)[0]
        covered += [
            pooled.rejected_if_valid.low <= 1 - ACCEPTED_IF_VALID <= pooled.rejected_if_valid.high,
            pooled.accepted_if_invalid.low <= ACCEPTED_IF_INVALID <= pooled.accepted_if_invalid.high,
        ]
    assert (covered / runs > 0.92).all(), covered / runs


def test_siblings_that_agree_count_as_one_image() -> None:
    alone = error_rates(judged(np.random.default_rng(1), 40))[0].errors
    sample = judged(np.random.default_rng(1), 40)
    tripled = JudgedSample(
        np.repeat(sample.valid, 3), np.repeat(sample.accepted, 3), np.repeat(sample.group, 3), [*sample.factors] * 3
    )
    together = error_rates(tripled)[0].errors
    assert alone is not None
    assert together is not None
    assert abs(together.valid - alone.valid) <= 2
    assert abs(together.invalid_accepted - alone.invalid_accepted) <= 1


def test_a_factor_with_few_images_gets_the_errors_of_all_and_too_few_in_all_get_none() -> None:
    sample = judged(np.random.default_rng(2), 100)
    rare = judged(np.random.default_rng(3), 5, factors=("domain",))
    both = JudgedSample(
        np.concatenate([sample.valid, rare.valid]),
        np.concatenate([sample.accepted, rare.accepted]),
        np.arange(105),
        [*sample.factors, *rare.factors],
    )
    pooled, domain, weather = error_rates(both)
    assert (pooled.factor, domain.factor, weather.factor) == (None, "domain", "weather")
    assert domain.pooled
    assert domain.errors == pooled.errors
    assert not weather.pooled
    assert weather.errors is not None
    assert weather.errors.valid == int(sample.valid.sum())
    assert weather.errors.invalid_accepted == int((sample.accepted & ~sample.valid).sum())
    assert all(rates.errors is None for rates in error_rates(rare))
    assert error_rates(judged(np.random.default_rng(4), 0))[0].accepted_if_invalid.value is None


def test_a_class_with_30_images_of_both_kinds_has_errors_of_its_own() -> None:
    sample = judged(np.random.default_rng(8), 200)
    labels = ["bus"] * 100 + ["car"] * 29 + ["boat"] * 61 + [None] * 10
    sample.valid[129:190] = True  # no invalid boat
    boat, bus, car = class_error_rates(replace(sample, labels=labels))
    assert [(rates.label, rates.images) for rates in (boat, bus, car)] == [("boat", 61), ("bus", 100), ("car", 29)]
    assert bus.errors is not None
    assert bus.errors.valid == int(sample.valid[:100].sum())
    assert bus.errors.invalid_accepted == int((sample.accepted & ~sample.valid)[:100].sum())
    assert boat.errors is None
    assert car.errors is None
    assert car.rejected_if_valid.n + car.accepted_if_invalid.n == 29
    assert class_error_rates(sample) == []
    assert fit_held_out(*scored(np.random.default_rng(8), 100, gap=2.0), np.arange(100) % 2 == 0).classes == []  # type: ignore[union-attr]


def test_the_number_of_reviews_that_are_missing_follows_from_the_rarer_kind() -> None:
    assert more_needed(0, 0) == 2 * LEAST_OF_EACH
    assert more_needed(50, LEAST_OF_EACH) == 0
    assert 35 <= more_needed(40, 5) <= 45
    widths = [half_width(40, 10, more) for more in (0, 50, 200, 1000)]
    assert widths == sorted(widths, reverse=True)
    assert half_width(50, 50, 0) == pytest.approx(0.136, abs=0.003)


def scored(random: np.random.Generator, n: int, gap: float) -> tuple[JudgedSample, ScoredImages]:
    """n edits of as many sources; `gap` separates the scores of valid edits from those of invalid ones."""
    sample = judged(random, n)
    scores = random.normal(size=(n, 2)) + gap * sample.valid[:, None] * np.array([1.0, 0.0])
    images = ScoredImages(
        ("structure", "label"), scores, np.where(sample.valid, VALID, 1), np.ones(n, np.bool_), sample.factors
    )
    return sample, images


def test_held_out_errors_of_fitted_thresholds_are_those_on_new_images() -> None:
    random = np.random.default_rng(5)
    accepted = {"held out": [], "new": []}  # type: dict[str, list[float]]
    for _ in range(40):
        sample, images = scored(random, 160, gap=3.0)
        fitted = fit_held_out(sample, images, np.arange(160) % 2 == 0)
        assert fitted is not None
        assert set(fitted.thresholds) == {"structure", "label"}
        assert fitted.auroc > 0.9
        rate = fitted.errors[0].accepted_if_invalid
        assert rate.value is not None
        accepted["held out"].append(rate.value)
        new, others = scored(random, 400, gap=3.0)
        lowest = np.array([fitted.thresholds[check]["default"] for check in others.checks])
        accepted["new"].append(float((others.scores[~new.valid] >= lowest).all(axis=1).mean()))
    assert np.mean(accepted["held out"]) == pytest.approx(np.mean(accepted["new"]), abs=0.04)


def test_checks_that_say_nothing_are_reported_as_such() -> None:
    sample, images = scored(np.random.default_rng(6), 400, gap=0.0)
    assert all(0.4 < value < 0.6 for value in separation(images).values())
    fitted = fit_held_out(sample, images, np.arange(400) % 2 == 0)
    assert fitted is not None
    assert 0.4 < fitted.auroc < 0.6
    assert fitted.errors[0].accepted_if_invalid.low > 0.6


def test_few_images_fit_no_thresholds() -> None:
    sample, images = scored(np.random.default_rng(7), 24, gap=3.0)
    assert fit_held_out(sample, images, np.arange(24) % 2 == 0) is None
