"""Comparison of two samples of own images."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.certainty import score_interval
from gateway.analysis.own_images import (
    LEAST_MARKED,
    Booleans,
    Marks,
    difference_interval,
    images_to_mark,
    own_samples,
    value_probabilities,
)
from shared.schemas.effects import Rate


def wilson(count: int, n: int) -> Rate:
    low, high = score_interval(count / n, n, 1.959964)
    return Rate(count=count, n=n, value=count / n, low=low, high=high)


def test_the_interval_is_newcombes() -> None:
    """56 of 70 and 48 of 80: Newcombe 1998, table II, example (a), method 10."""
    interval = difference_interval(wilson(56, 70), wilson(48, 80))
    assert interval is not None
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.0524, 0.3339)


def test_the_interval_covers_the_difference() -> None:
    random, covered = np.random.default_rng(1), 0
    for _ in range(2_000):
        first, second = int(random.binomial(12, 0.3)), int(random.binomial(60, 0.9))
        interval = difference_interval(wilson(first, 12), wilson(second, 60))
        assert interval is not None
        covered += interval.low <= -0.6 <= interval.high
    assert covered / 2_000 > 0.925


def test_an_empty_sample_has_no_difference() -> None:
    assert difference_interval(Rate(count=0, n=0, value=None, low=0.0, high=1.0), wilson(3, 4)) is None


def test_probabilities_follow_the_cosines() -> None:
    images, values = np.eye(3)[:2], np.eye(3)
    probabilities = value_probabilities(images, values, 100.0)
    assert probabilities.shape == (2, 3)
    assert probabilities.argmax(axis=1).tolist() == [0, 1]
    assert probabilities.sum(axis=1) == pytest.approx(1.0)


def marks(yes: str, no: str = "", unsure: str = "") -> Marks:
    """Marks of images that are named by letters, of the 26."""
    return Marks(*(mask(letters) for letters in (yes, no, unsure)))


def mask(letters: str) -> Booleans:
    return np.array([letter in letters for letter in "abcdefghijklmnopqrstuvwxyz"], np.bool_)


def letters_of(mask: Booleans) -> str:
    return "".join(chr(ord("a") + int(place)) for place in np.flatnonzero(mask))


def test_without_marks_the_scorers_choice_stands() -> None:
    samples = own_samples(mask("abcdefgh"), marks(""))
    assert letters_of(samples.showing) == "abcdefgh"
    assert letters_of(samples.rest) == "ijklmnopqrstuvwxyz"
    assert samples.chosen_by == "scorer"


def test_a_few_marks_overrule_the_scorer_and_leave_the_rest_of_its_choice() -> None:
    samples = own_samples(mask("abcdefgh"), marks("az", "bc", "dy"))
    assert letters_of(samples.showing) == "aefghz"
    assert letters_of(samples.rest) == "bcijklmnopqrstuvwx"
    assert samples.chosen_by == "scorer and eye"


@pytest.mark.parametrize(("decided", "chosen_by"), [(LEAST_MARKED - 1, "scorer and eye"), (LEAST_MARKED, "eye")])
def test_from_twelve_decided_images_on_only_confirmed_ones_show_the_value(decided: int, chosen_by: str) -> None:
    chosen = "abcdefghijklmnop"
    samples = own_samples(mask(chosen), marks(chosen[1:decided], "a", "z"))
    unmarked = "" if chosen_by == "eye" else chosen[decided:]
    assert letters_of(samples.showing) == chosen[1:decided] + unmarked
    assert letters_of(samples.rest) == "aqrstuvwxy", "undecided images, and unmarked ones of the choice, are in neither"
    assert samples.chosen_by == chosen_by


def test_a_small_choice_is_confirmed_when_all_of_it_is_marked() -> None:
    assert own_samples(mask("abc"), marks("ab", "c")).chosen_by == "eye"
    assert own_samples(mask("abc"), marks("ab")).chosen_by == "scorer and eye"


def test_images_to_mark_are_a_sample_of_the_choice_and_its_nearest_misses_in_an_order_of_their_own() -> None:
    digests = [f"{number * 37 % 100:02}" for number in range(100)]
    chosen = np.arange(100) < 60
    listed = images_to_mark(digests, chosen, np.linspace(1, 0, 100))
    assert listed == sorted(listed)
    nearest = set(digests[60:68])
    assert nearest < set(listed)
    assert sorted(set(listed) - nearest) == sorted(digests[:60])[:48], "the first digests, which are random"
    assert images_to_mark(["a", "a", "b"], np.array([True, True, False]), np.array([0.9, 0.9, 0.4])) == ["a", "b"]
