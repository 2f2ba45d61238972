"""Two releases compared: planted drops are told, noise is not, pairs that miss an answer are left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gateway.analysis.effects import Outcomes, Predictions
from gateway.analysis.releases import ORIGINALS, Pairs, against_baseline, against_null_arms, judge
from shared.schemas.results import Cell

NIGHT = Cell(label="bus", factor="weather", value="night", direction="to")
RAIN = Cell(label="bus", factor="weather", value="rain", direction="to")


def answers(right: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Predictions:
    """Predictions that are right where told."""
    return Predictions(right.astype(float), np.where(right, 1, 2).astype(np.int64), right.astype(np.int64))


def outcomes(source: list[int], ordinal: list[int], right: list[bool], originals: bool = True) -> Outcomes:
    """Night at ordinal 0, rain at ordinal 1, null arms all right."""
    places = np.array(ordinal, np.int64)
    return Outcomes(
        source=np.array(source, np.int64),
        ordinal=places,
        null_arm=np.arange(len(source)),
        original=answers(np.full(len(source), originals)),
        null=answers(np.ones(len(source), bool)),
        counterfactual=answers(np.array(right, bool)),
        cells={NIGHT: np.flatnonzero(places == 0), RAIN: np.flatnonzero(places == 1)},
    )


def release(random: np.random.Generator, sources: int, night: float, rain: float) -> Outcomes:
    """A model that is right with these probabilities."""
    right = random.random((sources, 2)) < [night, rain]
    return outcomes([n for n in range(sources) for _ in range(2)], [0, 1] * sources, right.ravel().tolist())


def test_a_planted_drop_is_a_breach_and_says_so() -> None:
    random = np.random.default_rng(1)
    before, after = release(random, 60, 0.95, 0.95), release(random, 60, 0.4, 0.95)
    cells = judge(against_baseline({"dillema": after}, {"dillema": before}, "labelled"), 0.05, seed=1)
    found = {(one.method, one.cell): one for one in cells}
    night, rain = found["dillema", NIGHT], found["dillema", RAIN]
    assert night.judgement == "drop" == cells[0].judgement
    assert night.selected_interval is not None
    assert night.selected_interval.high < -0.05
    assert night.sentence.startswith("`bus` with weather changed to night (dillema): ")
    assert f"{round(100 * (night.accuracy.value or 0))} % right against" in night.sentence
    assert rain.judgement != "drop"
    assert (found[ORIGINALS, None].difference, found[ORIGINALS, None].judgement) == (0.0, "undecided"), "60 are few"
    assert (found["dillema", None].images, found["dillema", None].sources) == (120, 60)


def test_equal_releases_seldom_breach() -> None:
    """Noise alone: breaches of one cell or another in at most a few of a hundred comparisons."""
    random = np.random.default_rng(2)
    breaches = 0
    for seed in range(60):
        before, after = (release(random, 40, 0.8, 0.8) for _ in range(2))
        cells = judge(against_baseline({"m": after}, {"m": before}, "labelled"), 0.0, seed)
        breaches += any(one.judgement == "drop" for one in cells)
    assert breaches <= 6


def test_a_noisy_drop_is_undecided_and_certainty_that_nothing_dropped_is_held() -> None:
    random = np.random.default_rng(3)
    few = judge(against_null_arms({"m": release(random, 14, 0.75, 1.0)}, "labelled"), 0.05, seed=1)
    by_cell = {one.cell: one for one in few}
    assert by_cell[NIGHT].difference < -0.05
    assert by_cell[NIGHT].judgement == "undecided"
    many = judge(against_null_arms({"m": release(random, 600, 1.0, 1.0)}, "labelled"), 0.05, seed=1)
    assert {one.judgement for one in many} == {"held"}


def test_under_twelve_sources_nothing_is_said() -> None:
    cells = judge(against_null_arms({"m": release(np.random.default_rng(4), 11, 0.0, 0.0)}, "labelled"), 0.05, seed=1)
    assert {one.judgement for one in cells} == {"too few images"}
    assert {one.interval for one in cells} == {None}


def test_only_images_that_both_answered_are_paired() -> None:
    mine = outcomes([0, 0, 1, 2], [0, 1, 0, 0], [True, True, False, True])
    theirs = outcomes([0, 1, 1, 2], [0, 0, 1, 0], [False, False, True, True])
    places = against_baseline({"m": mine}, {"m": theirs}, "labelled")
    assert places["m", None].source.tolist() == [0, 1, 2]
    assert places["m", None].differences().tolist() == [1.0, 0.0, 0.0]
    assert len(places["m", RAIN].source) == 0
    assert places["m", NIGHT].right.tolist() == [True, False, True]
    assert places[ORIGINALS, None].source.tolist() == [0, 1, 2]


def test_source_images_weigh_alike_whatever_their_number_of_counterfactuals() -> None:
    pairs = Pairs(np.array([0, 0, 0, 1]), np.array([0, 0, 0, 1], bool), np.ones(4, bool))
    assert pairs.differences().tolist() == [-1.0, 0.0]
    judged = judge({("m", None): pairs}, 0.05, seed=1)
    assert judged[0].difference == pytest.approx(-0.5)


def test_without_ground_truth_classes_are_taken_together() -> None:
    mine = outcomes([0, 1], [0, 0], [True, False])
    car = NIGHT.model_copy(update={"label": "car"})
    mine = replace(mine, cells={NIGHT: np.array([0]), car: np.array([1])})
    places = against_null_arms({"m": mine}, "metamorphic")
    assert places["m", NIGHT.model_copy(update={"label": ""})].right.tolist() == [True, False]
    assert set(places) == {("m", None), ("m", NIGHT.model_copy(update={"label": ""}))}
    assert (ORIGINALS, None) not in against_baseline({"m": mine}, {"m": mine}, "metamorphic")
