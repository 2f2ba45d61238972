"""Kernel distance against the textbook's double sum, unbiased by siblings; Fréchet distance and perplexity by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.analysis.realism import frechet_distance, kernel_distance, kernel_estimate, perplexity

Floats = NDArray[np.float64]


def unit(rows: Floats) -> Floats:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def by_the_book(x: Floats, y: Floats, pairs_of_one_source: bool) -> float:
    def kernel(a: Floats, b: Floats) -> float:
        return float((a @ b + 1) ** 3)

    within = [kernel(points[i], points[j]) for points in (x, y) for i in range(len(x)) for j in range(len(x)) if i != j]
    across = [kernel(x[i], y[j]) for i in range(len(x)) for j in range(len(y)) if pairs_of_one_source or i != j]
    return float(2 * np.mean(within) - 2 * np.mean(across))


def test_it_is_the_double_sum_without_pairs_of_one_source() -> None:
    random = np.random.default_rng(0)
    x, y = unit(random.normal(size=(6, 8))), unit(random.normal(size=(6, 8)) + 1)
    places = np.arange(6)
    distance = kernel_distance(x, places, y, places)
    assert distance is not None
    assert distance.value == pytest.approx(by_the_book(x, y, pairs_of_one_source=False))
    assert distance.sources == 6
    assert kernel_distance(x[:2], places[:2], y, places) is None


def test_the_frechet_distance_is_that_of_normal_distributions() -> None:
    random = np.random.default_rng(0)
    x, mixing = random.normal(size=(400, 3)), random.normal(size=(3, 3))
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(x, x + np.array([1, 2, 0])) == pytest.approx(3 * 5), "the shift, squared, times the width"
    y = x @ mixing
    first, second = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    shared = np.sqrt(np.linalg.eigvals(first @ second).real).sum()
    shift = x.mean(axis=0) - y.mean(axis=0)
    by_hand = 3 * (shift @ shift + np.trace(first) + np.trace(second) - 2 * shared)
    assert frechet_distance(x, y) == pytest.approx(by_hand)


def test_the_error_is_that_of_leaving_each_source_out() -> None:
    random = np.random.default_rng(1)
    x, y = unit(random.normal(size=(5, 4))), unit(random.normal(size=(10, 4)))
    ones, twos = np.arange(5), np.repeat(np.arange(5), 2)
    distance = kernel_distance(x, ones, y, twos)
    assert distance is not None
    values = []
    for gone in range(5):
        some = kernel_distance(x[ones != gone], ones[ones != gone], y[twos != gone], twos[twos != gone])
        assert some is not None
        values.append(some.value)
    assert distance.error == pytest.approx(math.sqrt(4 / 5 * np.sum((np.array(values) - np.mean(values)) ** 2)))


def test_copies_of_the_sources_are_as_far_as_fresh_images_of_their_kind_and_strangers_further() -> None:
    random = np.random.default_rng(2)
    x = unit(random.normal(size=(300, 8)) + 1)
    places = np.arange(300)
    copies = kernel_distance(x, places, x + 0, places)
    strangers = kernel_distance(x, places, unit(random.normal(size=(300, 8)) - 1), places)
    assert copies is not None
    assert strangers is not None
    assert copies.value == pytest.approx(0, abs=1e-9)
    assert strangers.value > 10 * strangers.error > 0


def test_perplexity_is_per_token() -> None:
    assert perplexity(np.log([0.25, 0.5]) * [2, 1], np.array([2, 1])) == pytest.approx(math.exp(5 / 3 * math.log(2)))
    assert perplexity(np.array([]), np.array([], np.int64)) is None


def test_the_bootstrap_interval_covers_the_value_and_agrees_with_the_jackknife() -> None:
    random = np.random.default_rng(3)
    x, y = unit(random.normal(size=(120, 8))), unit(random.normal(size=(120, 8)) + 0.5)
    places = np.arange(120)
    jackknife, estimate = kernel_distance(x, places, y, places), kernel_estimate(x, places, y, places, 1)
    assert jackknife is not None
    assert estimate is not None
    assert estimate.value == pytest.approx(jackknife.value)
    assert estimate.low < estimate.value < estimate.high
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * jackknife.error, rel=0.35)
    assert kernel_estimate(x, places, y, places, 1) == estimate


def test_frames_of_one_sequence_widen_the_interval() -> None:
    random = np.random.default_rng(4)
    x = unit(np.repeat(random.normal(size=(20, 8)), 6, axis=0) + 0.05 * random.normal(size=(120, 8)))
    y = unit(np.repeat(random.normal(size=(20, 8)) + 0.5, 6, axis=0) + 0.05 * random.normal(size=(120, 8)))
    images, sequences = np.arange(120), np.repeat(np.arange(20), 6)
    alone, together = kernel_estimate(x, images, y, images, 1), kernel_estimate(x, sequences, y, sequences, 1)
    assert alone is not None
    assert together is not None
    assert together.high - together.low > 1.5 * (alone.high - alone.low)
    assert kernel_estimate(x, np.repeat([0, 1], 60), y, sequences, 1) is None
