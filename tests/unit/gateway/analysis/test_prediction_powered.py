"""The valid share from a judge and a few reviews: its interval covers for any judge, and a good judge narrows it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gateway.analysis.effects import Floats
from gateway.analysis.prediction_powered import prediction_powered_share
from gateway.analysis.thresholds import Booleans

Judge = Callable[[np.random.Generator, Booleans], Floats]
OTHERS = 400


def useless(random: np.random.Generator, valid: Booleans) -> Floats:
    return random.random(len(valid))


def good(random: np.random.Generator, valid: Booleans) -> Floats:
    return 1 / (1 + np.exp(-(random.normal(size=len(valid)) + 2 * (2.0 * valid - 1))))


def lenient(random: np.random.Generator, valid: Booleans) -> Floats:
    """Says yes to most invalid images, too."""
    return np.where(valid, random.random(len(valid)) < 0.95, random.random(len(valid)) < 0.6).astype(np.float64)


def covered(judge: Judge, share: float, reviewed: int, siblings: int = 1, runs: int = 300) -> tuple[float, float]:
    """The share of simulated jobs whose interval has the true share, and its mean width."""
    hits, width = 0, 0.0
    for seed in range(runs):
        random = np.random.default_rng((seed, reviewed))
        group = np.arange(reviewed + OTHERS) // siblings
        valid = np.repeat(random.random(group[-1] + 1) < share, siblings)[: len(group)]
        scores = judge(random, valid)
        chosen = np.zeros(len(group), np.bool_)
        chosen[random.permutation(len(group))[:reviewed]] = True
        powered = prediction_powered_share(
            valid[chosen], scores[chosen], group[chosen], scores[~chosen], group[~chosen]
        )
        assert powered is not None
        hits += powered.low <= share <= powered.high
        width += powered.high - powered.low
    return hits / runs, width / runs


@pytest.mark.parametrize("judge", [useless, good, lenient])
@pytest.mark.parametrize(("share", "reviewed", "siblings"), [(0.6, 20, 1), (0.9, 40, 1), (0.1, 40, 1), (0.6, 60, 3)])
def test_the_interval_covers_for_every_judge(judge: Judge, share: float, reviewed: int, siblings: int) -> None:
    assert covered(judge, share, reviewed, siblings)[0] >= 0.91, "of 300; 0.93 or more of many"


def test_a_good_judge_narrows_the_interval_and_a_useless_one_does_not_widen_it() -> None:
    of_good, of_useless = covered(good, 0.6, 60, runs=60)[1], covered(useless, 0.6, 60, runs=60)[1]
    assert of_good < 0.65 * of_useless
    assert of_useless < 0.27, "Wilson's for 60 reviews is 0.24 wide"


def test_few_reviews_give_no_estimate() -> None:
    valid, scores = np.ones(19, np.bool_), np.ones(19)
    assert prediction_powered_share(valid, scores, np.arange(19), np.ones(50), np.arange(50)) is None
    many = np.ones(40, np.bool_)
    assert prediction_powered_share(many, np.ones(40), np.arange(40) % 10, np.ones(50), np.arange(50)) is None
    assert prediction_powered_share(many, np.ones(40), np.arange(40), np.ones(0), np.arange(0)) is None


def test_reviews_that_all_agree_still_have_an_interval() -> None:
    powered = prediction_powered_share(np.ones(40, np.bool_), np.ones(40), np.arange(40), np.ones(90), np.arange(90))
    assert powered is not None
    assert powered.value == 1.0
    assert 0.8 < powered.low < 0.95
