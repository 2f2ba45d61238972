"""Where an adaptive job spends its renderings, and tests that are valid whenever one looks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.analysis.allocation import Suspicion, allocate
from gateway.analysis.betting import anytime_interval, anytime_p, betting_p, expected_left
from gateway.analysis.effects import Differences
from gateway.analysis.findings import Checked, assess, hypothesis_tests
from gateway.analysis.limits import BEYOND
from gateway.analysis.validity import Screened
from shared.schemas.effects import CheckErrors
from tests.support.effects import cell, differences

CALM = Suspicion(drop=0.0, images=15, free=range(250))
SUSPECT = replace(CALM, drop=0.4)


def with_an_arm(values: int) -> int:
    """Edits of one image share one arm."""
    return values + (values > 0)


SUSPICIONS = st.builds(
    Suspicion,
    drop=st.floats(-1, 1),
    images=st.integers(0, 50),
    free=st.lists(st.integers(0, 9), unique=True),
    decided=st.booleans(),
)


@given(
    st.dictionaries(st.text("abcd", min_size=1, max_size=3), SUSPICIONS),
    st.integers(0, 60),
    st.integers(1, 6),
    st.sampled_from([with_an_arm, lambda values: values, lambda values: 3 * values + min(values, 2)]),
)
def test_a_round_never_costs_more_than_its_budget(places, budget, rounds_left, cost) -> None:  # type: ignore[no-untyped-def]
    shares = allocate(places, budget, rounds_left, cost)
    values = Counter(image for images in shares.values() for image in images)
    spent = sum(map(cost, values.values()))
    assert spent <= budget
    for name, images in shares.items():
        assert images == list(places[name].free[: len(images)])
        assert not places[name].decided
    complete = all(len(shares.get(name, [])) == len(place.free) for name, place in places.items() if not place.decided)
    assert complete or budget - spent < cost(1)


def test_the_place_that_seems_to_fail_most_comes_first() -> None:
    shares = allocate({"a": CALM, "b": SUSPECT, "c": replace(SUSPECT, drop=0.2)}, 120, 5, cost=lambda values: values)
    assert {name: len(images) for name, images in shares.items()} == {"b": 50, "c": 50, "a": 20}
    few = replace(SUSPECT, images=1)
    assert len(allocate({"a": replace(CALM, drop=0.2), "b": few}, 60, 5, cost=lambda values: values)["a"]) == 50


def test_arms_that_edits_share_are_paid_once() -> None:
    places = {"night": SUSPECT, "fog": SUSPECT}
    assert sum(map(len, allocate(places, 30, 1, with_an_arm).values())) == 15
    shares = allocate({name: replace(SUSPECT, free=range(10)) for name in places}, 30, 1, with_an_arm)
    assert {name: len(images) for name, images in shares.items()} == {"night": 10, "fog": 10}


def test_a_place_that_is_decided_or_used_up_gets_nothing() -> None:
    places = {"decided": replace(SUSPECT, decided=True), "used up": replace(SUSPECT, free=())}
    assert allocate(places, 100, 1, cost=lambda values: values) == {}


def test_an_anytime_test_stays_decided_and_rarely_errs() -> None:
    """Looked at after every difference; the effect is exactly 5 points. p ≤ .05 in at most 5 % of sequences."""
    random = np.random.default_rng(1)
    crossed, left = 0, np.arange(60.0, 0, -1)
    for _ in range(60):
        pairs = np.where(random.random(60) < BEYOND, -1.0, 0.0)
        p_values = [anytime_p(pairs[:n], BEYOND, left[:n]) for n in (12, 20, 30, 40, 50, 60)]
        assert p_values == sorted(p_values, reverse=True)
        crossed += p_values[-1] <= 0.05
    assert crossed <= 7  # 99.5 % quantile of the binomial (60, 0.05) is 8
    lost = np.full(40, -1.0)
    assert anytime_p(lost, BEYOND, left[20:]) <= betting_p(lost, BEYOND)
    at_once, later = (anytime_interval(np.r_[lost, more], 0.95, left) for more in (np.zeros(0), np.zeros(5)))
    assert at_once[1] < -BEYOND
    assert later[1] < -BEYOND


def test_a_large_effect_is_shown_long_before_the_last_planned_image() -> None:
    lost = np.repeat([-1.0, 0.0], [2, 1])
    assert anytime_p(np.tile(lost, 12), BEYOND, np.arange(300.0, 0, -1)) < 0.001


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(41, 100))
def test_what_is_expected_depends_on_the_images_before_alone(places: set[int], planned: int) -> None:
    ranks = np.array(sorted(places), dtype=np.int64)
    left = expected_left(ranks, planned)
    assert (left >= 1).all()
    for count in range(1, len(ranks)):
        assert (expected_left(ranks[:count], planned) == left[:count]).all()


def test_results_do_not_choose_the_family() -> None:
    def opened(of_cell: Differences) -> Differences:
        return replace(of_cell, left=np.arange(float(len(of_cell.correct)), 0, -1))

    cells = {cell("night"): opened(differences(np.repeat([-1, 0], [14, 2])))}
    cells |= {cell(str(n)): opened(differences(np.zeros(5))) for n in range(9)}
    tests = hypothesis_tests(cells, seed=1)
    assert (len(tests), tests[cell("0")].lost) == (10, 1.0)
    assert tests[cell("night")].q_lost == 10 * tests[cell("night")].lost
    first, *rest = assess(cells, seed=1)
    assert first.cell == cell("night")
    assert {(effect.standing, effect.p_value) for effect in rest} == {("too few images", None)}


def test_the_effect_among_valid_edits_is_no_more_certain_than_the_effect() -> None:
    """The results decided when to stop, so its interval has to hold at any number of images, too."""
    pairs = differences(np.tile([-1, -1, 1, -1, 0], 14))
    pairs = replace(pairs, left=np.arange(140.0, 140 - len(pairs.correct), -1))
    checked = Checked(
        {"weather": CheckErrors(valid=10**6, valid_accepted=10**6, invalid=10**6, invalid_accepted=0)},
        {cell("night"): Screened(pairs.group, np.ones(len(pairs.group), bool))},
    )
    (effect,) = assess({cell("night"): pairs}, 1, checked)
    assert effect.among_valid is not None
    among, observed = effect.among_valid.interval, effect.selected_interval
    assert observed is not None
    assert (among.kind, observed.kind) == ("betting", "betting")
    assert among.high >= observed.high
