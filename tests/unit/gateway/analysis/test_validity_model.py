"""The combined model of the checks: it recovers known probabilities, and is judged on images that did not fit it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gateway.analysis.thresholds import auroc
from gateway.analysis.validity_model import (
    FOLDS,
    LEAST_TO_FIT,
    SignalSample,
    _fit,
    auroc_interval,
    fit_model,
    folds,
    held_out_accepted,
    held_out_probabilities,
    lowest_probability,
)
from shared.schemas.validity import EditKind, signal_value

KINDS = (
    EditKind(("weather",), ("night",), ("bus",)),
    EditKind(("domain",), ("sketch",), ("bus",)),
    EditKind(("weather", "domain"), ("snow", "sketch"), ("car",)),
)


def sample(n: int, seed: int = 0, siblings: int = 1, strength: float = 1.5) -> SignalSample:
    """n images whose log-odds are `strength` times the difference of two signals; a third signal is noise."""
    random = np.random.default_rng(seed)
    signals = random.normal(size=(n, 3))
    valid = random.random(n) < 1 / (1 + np.exp(-strength * (signals[:, 0] - signals[:, 1])))
    edits = [KINDS[place % 3] for place in range(n)]
    return SignalSample(("up", "down", "noise"), signals, edits, valid, np.arange(n) // siblings)


def test_the_penalty_matters_less_the_more_images_there_are() -> None:
    few, many = (_fit(sample(n)) for n in (100, 2_000))
    assert few.weights[1] / few.scale[0] < many.weights[1] / many.scale[0]
    assert many.weights[1:4] / many.scale == pytest.approx([1.5, -1.5, 0], abs=0.25)


@pytest.mark.slow
def test_weights_of_a_large_sample_are_those_that_made_it() -> None:
    signal_sample = sample(6_000)
    model = fit_model(signal_sample, seed=1)
    assert model is not None
    weights = {name: weight.weight / weight.scale for name, weight in model.signals.items()}
    assert weights["up"] == pytest.approx(1.5, abs=0.15)
    assert weights["down"] == pytest.approx(-1.5, abs=0.15)
    assert abs(weights["noise"]) < 0.15
    assert (model.images, model.valid) == (6_000, int(signal_sample.valid.sum()))


def test_the_stored_model_gives_the_probabilities_of_the_fitted_one() -> None:
    signal_sample = sample(400)
    signals = signal_sample.signals.copy()
    signals[:40, 1] = np.nan
    holed = SignalSample(signal_sample.names, signals, signal_sample.edits, signal_sample.valid, signal_sample.group)
    model = fit_model(holed, seed=1)
    assert model is not None
    by_image = [
        model.probability({name: value for name, value in zip(holed.names, row, strict=True) if value == value}, edit)
        for row, edit in zip(signals, holed.edits, strict=True)
    ]
    probabilities = np.array([value for value in by_image if value is not None])
    assert len(probabilities) == 400
    assert probabilities.mean() == pytest.approx(signal_sample.valid.mean(), abs=0.005), (
        "the intercept is not penalised"
    )


def test_without_any_of_its_scores_there_is_no_probability() -> None:
    model = fit_model(sample(200), seed=1)
    assert model is not None
    assert model.probability({"other": 1.0}, KINDS[0]) is None


def test_probabilities_enter_as_log_odds() -> None:
    assert signal_value("label", 0.75) == pytest.approx(math.log(3))
    assert signal_value("label", 1.0) == pytest.approx(math.log(999)), "clipped"
    assert signal_value("fit", 0.75) == 0.75


def test_noise_alone_separates_nothing_when_cross_validated() -> None:
    areas = []
    for seed in range(20):
        noise = sample(120, seed, strength=0.0)
        probabilities = held_out_probabilities(noise, seed)
        areas.append(auroc(probabilities[noise.valid], probabilities[~noise.valid]))
    assert np.mean(areas) < 0.56


def test_siblings_share_a_fold_and_folds_are_even() -> None:
    group = np.repeat(np.arange(50), 4)
    of_image = folds(group, seed=3)
    assert all(len(set(of_image[group == source])) == 1 for source in range(50))
    assert np.bincount(of_image).tolist() == [40] * FOLDS


@pytest.mark.slow
@pytest.mark.parametrize("siblings", [1, 4])
def test_the_interval_of_the_auroc_covers(siblings: int) -> None:
    """Siblings share signal and verdict, so that only their groups are independent."""
    truth = 0.7602  # of unit normals one standard deviation apart
    hits, runs = 0, 120
    for seed in range(runs):
        random = np.random.default_rng(seed)
        kind = np.repeat(random.random(80) < 0.5, siblings)
        scores = np.repeat(random.normal(size=80), siblings) + kind
        interval = auroc_interval(scores, kind, np.repeat(np.arange(80), siblings), seed)
        hits += interval.low <= truth <= interval.high
    assert hits / runs >= 0.88


def test_a_threshold_refuses_at_most_13_percent_of_the_valid_images() -> None:
    signal_sample = sample(800, seed=4)
    probabilities = held_out_probabilities(signal_sample, 4)
    lowest = lowest_probability(probabilities, signal_sample.valid)
    assert 0.10 <= float((probabilities[signal_sample.valid] < lowest).mean()) <= 0.13
    accepted = held_out_accepted(probabilities, signal_sample.valid, signal_sample.group, 4)
    assert accepted[signal_sample.valid].mean() == pytest.approx(0.87, abs=0.04)
    assert accepted[~signal_sample.valid].mean() < 0.6


def test_edits_at_which_the_generator_fails_have_a_low_probability() -> None:
    """Values decide here, and the scores say nothing; the model says which of the two it is."""
    random = np.random.default_rng(7)
    n = 400
    fails = np.arange(n) % 2 == 0
    valid = random.random(n) < np.where(fails, 0.1, 0.8)
    edits = [EditKind(("weather",), ("fog" if failing else "night",), ("bus",)) for failing in fails]
    signal_sample = SignalSample(("noise",), random.normal(size=(n, 1)), edits, valid, np.arange(n))
    model = fit_model(signal_sample, seed=1)
    assert model is not None
    fog, night = (model.probability({"noise": 0.0}, edits[place]) for place in (0, 1))
    assert fog == pytest.approx(0.1, abs=0.06)
    assert night == pytest.approx(0.8, abs=0.06)
    unknown = model.probability({"noise": 0.0}, EditKind(("weather",), ("rain",), ("bus",)))
    assert unknown == pytest.approx(0.45, abs=0.15), "a value that nobody judged"
    assert model.auroc.value > 0.8
    assert model.auroc_of_scores.value < 0.6


def test_few_images_fit_no_model() -> None:
    signal_sample = sample(300)
    few = np.flatnonzero(signal_sample.valid)[: LEAST_TO_FIT - 1]
    chosen = ~signal_sample.valid
    chosen[few] = True
    assert fit_model(signal_sample.subset(chosen), seed=1) is None
    assert fit_model(signal_sample.without(signal_sample.names), seed=1) is None, "without signals"
