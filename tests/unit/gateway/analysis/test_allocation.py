"""Where an adaptive job spends its renderings, and tests that are valid whenever one looks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.simulated_designs import DesignSetting, adaptive_job
from gateway.analysis.allocation import Suspicion, allocate, is_cleared, round_budgets
from gateway.analysis.betting import anytime_interval, anytime_p, betting_p
from gateway.analysis.limits import BEYOND

CALM = Suspicion(drop=0.0, images=15, free=250, yield_=0.75)
SUSPECT = replace(CALM, drop=0.4)


def test_the_rounds_spend_the_whole_budget() -> None:
    for budget in (1, 7, 1_200):
        assert sum(round_budgets(budget)) == budget
    assert round_budgets(1_200)[0] == 600


def test_suspects_get_fresh_images_first_and_the_rest_goes_to_all_others() -> None:
    shares = allocate({"a": CALM, "b": SUSPECT, "c": CALM}, edits=200, rounds_left=3)
    assert (shares["b"].confirming > 0, shares["b"].screening, shares["b"].horizon > 0) == (True, 0, True)
    assert {shares[name].confirming for name in "ac"} == {0}
    assert abs(shares["a"].screening - shares["c"].screening) <= 1
    assert sum(share.confirming + share.screening for share in shares.values()) == 200


def test_a_place_that_is_decided_or_used_up_gets_nothing() -> None:
    places = {"found": replace(SUSPECT, decided=True), "used up": replace(SUSPECT, free=0)}
    assert all(share.confirming + share.screening == 0 for share in allocate(places, 100, 1).values())


def test_the_test_of_a_suspect_keeps_its_plan() -> None:
    first = allocate({"a": SUSPECT}, 40, 3)["a"]
    later = replace(SUSPECT, drop=0.1, horizon=first.horizon, given=first.confirming, free=200)
    assert allocate({"a": later}, 40, 2)["a"].horizon == first.horizon


def test_a_suspect_is_cleared_only_by_tested_images() -> None:
    assert is_cleared(replace(SUSPECT, drop=0.02, images=40), confirmed=12)
    assert not is_cleared(replace(SUSPECT, drop=0.02, images=40), confirmed=11)
    assert not is_cleared(SUSPECT, confirmed=40)


def test_an_anytime_test_stays_decided_and_rarely_errs() -> None:
    """Looked at after every difference; the effect is exactly 5 points. p ≤ .05 in at most 5 % of sequences."""
    random = np.random.default_rng(1)
    crossed = 0
    for _ in range(60):
        differences = np.where(random.random(60) < BEYOND, -1.0, 0.0)
        crossed += any(anytime_p(differences[:n], BEYOND, 60) <= 0.05 for n in (12, 20, 30, 40, 50, 60))
    assert crossed <= 7  # 99.5 % quantile of the binomial (60, 0.05) is 8
    lost = np.full(40, -1.0)
    assert anytime_p(lost, BEYOND, 40) <= betting_p(lost, BEYOND, 1) * 1.5
    at_once, later = (anytime_interval(np.r_[lost, more], 0.95, 40) for more in (np.zeros(0), np.zeros(5)))
    assert at_once[1] < -BEYOND
    assert later[1] < -BEYOND


def test_an_adaptive_job_finds_what_an_even_one_of_its_size_would_not() -> None:
    setting = DesignSetting(pool=300, edits=1_200, drop=0.6)
    results = [adaptive_job(setting, seed) for seed in range(2)]
    assert all(result == {"0/0"} and edits <= setting.edits for result, edits in results)
