"""Comparing releases: planted drops are found, noise is not, and incomplete pairs are left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.analysis.certainty import mean_overlap
from gateway.analysis.effects import Floats, Outcomes, Predictions, Ranks, Scores
from gateway.analysis.releases import (
    ORIGINALS,
    Pairs,
    Place,
    against_baseline,
    against_null_arms,
    family_tests,
    judge,
)
from shared.schemas.effects import Cell
from shared.schemas.masks import ALL_CLASSES

NIGHT = Cell(label="bus", factor="weather", value="night", direction="to")
RAIN = Cell(label="bus", factor="weather", value="rain", direction="to")


def answers(right: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Predictions:
    """Predictions that are right where told."""
    return Predictions(right.astype(float), np.where(right, 1, 2).astype(np.int64), right.astype(np.int64))


def outcomes(source: list[int], ordinal: list[int], right: list[bool], originals: bool = True) -> Scores:
    """Night at ordinal 0, rain at ordinal 1, null arms all right."""
    places = np.array(ordinal, np.int64)
    return Outcomes.of(
        Ranks(
            answers(np.full(len(source), originals)),
            answers(np.ones(len(source), bool)),
            answers(np.array(right, bool)),
        ),
        source=np.array(source, np.int64),
        ordinal=places,
        null_arm=np.arange(len(source)),
        cells={NIGHT: np.flatnonzero(places == 0), RAIN: np.flatnonzero(places == 1)},
    )


def segmented(source: list[int], overlaps: list[tuple[float, float]], null: float = 1.0) -> Scores:
    """A counterfactual (night) of each source: IoU of bus and car, whose mean is the image's."""
    images = len(source)
    scores = np.array([[bus, car, (bus + car) / 2] for bus, car in overlaps])
    rows = np.arange(3 * images).reshape(images, 3)
    labels = ("bus", "car", ALL_CLASSES)
    return Scores(
        source=np.array(source),
        ordinal=np.zeros(images, np.int64),
        original=np.full(images, 0.9),
        image=np.repeat(np.arange(images), 3),
        null=np.full(3 * images, null),
        counterfactual=scores.ravel(),
        whole=rows[:, 2],
        cells={NIGHT.model_copy(update={"label": label}): rows[:, place] for place, label in enumerate(labels)},
    )


def release(random: np.random.Generator, sources: int, night: float, rain: float) -> Scores:
    """A model that is right with these probabilities."""
    right = random.random((sources, 2)) < [night, rain]
    return outcomes([n for n in range(sources) for _ in range(2)], [0, 1] * sources, right.ravel().tolist())


def test_a_planted_drop_is_a_breach() -> None:
    random = np.random.default_rng(1)
    before, after = release(random, 60, 0.95, 0.95), release(random, 60, 0.4, 0.95)
    cells = judge(against_baseline({"dillema": after}, {"dillema": before}, "labelled"), 0.05, seed=1)
    by_cell = {(comparison.method, comparison.cell): comparison for comparison in cells}
    night, rain = by_cell["dillema", NIGHT], by_cell["dillema", RAIN]
    assert night.judgement == "drop" == cells[0].judgement
    assert night.selected_interval is not None
    assert night.selected_interval.high < -0.05
    assert night.accuracy.value is not None
    assert night.against.value is not None
    assert night.accuracy.value < 0.6 < 0.8 < night.against.value
    assert rain.judgement != "drop"
    assert (by_cell[ORIGINALS, None].difference, by_cell[ORIGINALS, None].judgement) == (0.0, "undecided"), "60 are few"
    assert (by_cell["dillema", None].images, by_cell["dillema", None].sources) == (120, 60)


def test_the_interval_of_a_rejected_place_is_adjusted_for_the_selection() -> None:
    places: dict[Place, Floats] = {
        ("lance", NIGHT.model_copy(update={"value": str(place)})): np.zeros(20) for place in range(10)
    }
    lost = list(places)[3:5]
    tests = family_tests(places | dict.fromkeys(lost, -np.ones(20)), 0.05, 1)
    assert [place for place, test in tests.items() if test.selected_interval] == lost
    for place in lost:
        selected, plain = tests[place].selected_interval, tests[place].interval
        assert selected is not None
        assert plain is not None
        assert selected.level == pytest.approx(1 - 0.05 * 2 / 10)
        assert selected.high > plain.high


@pytest.mark.slow
def test_equal_releases_seldom_breach() -> None:
    """Noise alone: breaches of one cell or another in at most a few of a hundred comparisons."""
    random = np.random.default_rng(2)
    breaches = 0
    for seed in range(60):
        before, after = (release(random, 40, 0.8, 0.8) for _ in range(2))
        cells = judge(against_baseline({"m": after}, {"m": before}, "labelled"), 0.0, seed)
        breaches += any(comparison.judgement == "drop" for comparison in cells)
    assert breaches <= 6


def test_a_noisy_drop_is_undecided_and_certainty_that_nothing_dropped_is_held() -> None:
    random = np.random.default_rng(3)
    few = judge(against_null_arms({"m": release(random, 14, 0.75, 1.0)}, "labelled"), 0.05, seed=1)
    by_cell = {comparison.cell: comparison for comparison in few}
    assert by_cell[NIGHT].difference < -0.05
    assert by_cell[NIGHT].judgement == "undecided"
    many = judge(against_null_arms({"m": release(random, 600, 1.0, 1.0)}, "labelled"), 0.05, seed=1)
    assert {comparison.judgement for comparison in many} == {"held"}


def test_cells_with_fewer_than_12_sources_are_not_tested() -> None:
    cells = judge(against_null_arms({"m": release(np.random.default_rng(4), 11, 0.0, 0.0)}, "labelled"), 0.05, seed=1)
    assert {comparison.judgement for comparison in cells} == {"too few images"}
    assert {comparison.interval for comparison in cells} == {None}


def test_only_images_that_both_answered_are_paired() -> None:
    mine = outcomes([0, 0, 1, 2], [0, 1, 0, 0], [True, True, False, True])
    theirs = outcomes([0, 1, 1, 2], [0, 0, 1, 0], [False, False, True, True])
    places = against_baseline({"m": mine}, {"m": theirs}, "labelled")
    assert places["m", None].source.tolist() == [0, 1, 2]
    assert places["m", None].differences().tolist() == [1.0, 0.0, 0.0]
    assert len(places["m", RAIN].source) == 0
    assert places["m", NIGHT].score.tolist() == [True, False, True]
    assert places[ORIGINALS, None].source.tolist() == [0, 1, 2]


def test_source_images_have_equal_weight_for_any_number_of_counterfactuals() -> None:
    pairs = Pairs(np.array([0, 0, 0, 1]), np.array([0, 0, 0, 1], bool), np.ones(4, bool))
    assert pairs.differences().tolist() == [-1.0, 0.0]
    judged = judge({("m", None): pairs}, 0.05, seed=1)
    assert judged[0].difference == pytest.approx(-0.5)


def test_without_ground_truth_classes_are_taken_together() -> None:
    mine = outcomes([0, 1], [0, 0], [True, False])
    car = NIGHT.model_copy(update={"label": "car"})
    mine = replace(mine, cells={NIGHT: np.array([0]), car: np.array([1])})
    places = against_null_arms({"m": mine}, "metamorphic")
    assert places["m", NIGHT.model_copy(update={"label": ""})].score.tolist() == [True, False]
    assert set(places) == {("m", None), ("m", NIGHT.model_copy(update={"label": ""}))}
    assert (ORIGINALS, None) not in against_baseline({"m": mine}, {"m": mine}, "metamorphic")


def test_a_segmenter_drops_in_the_class_that_it_draws_worse() -> None:
    random = np.random.default_rng(5)
    before = [(0.9 - noise, 0.8 - noise) for noise in random.uniform(0, 0.1, 30)]
    after = [(bus / 3, car) for bus, car in before]
    sources = list(range(30))
    places = against_baseline({"m": segmented(sources, after)}, {"m": segmented(sources, before)}, "labelled")
    by_label = {
        (comparison.method, comparison.cell.label if comparison.cell else ""): comparison
        for comparison in judge(places, 0.05, 1, mean_overlap)
    }
    bus, car, whole = (by_label["m", label] for label in ("bus", "car", ALL_CLASSES))
    assert (bus.judgement, car.difference, whole.judgement) == ("drop", 0.0, "drop")
    assert bus.accuracy.value == pytest.approx(np.mean([bus for bus, _ in after]))
    assert bus.difference == pytest.approx(2 * whole.difference)
    assert (by_label["m", ""].difference, by_label[ORIGINALS, ""].difference) == (whole.difference, 0.0)


def test_segmenters_are_paired_by_counterfactual_if_either_left_some_out() -> None:
    mine, theirs = segmented([0, 1, 3], [(0.1, 1), (0.2, 1), (0.3, 1)]), segmented([1, 2, 3], [(0.5, 1)] * 3)
    places = against_baseline({"m": mine}, {"m": theirs}, "labelled")
    assert places["m", NIGHT].source.tolist() == [1, 3]
    assert places["m", NIGHT].score.tolist() == [0.2, 0.3]
    together = against_baseline({"m": mine}, {"m": theirs}, "metamorphic")
    assert set(together) == {("m", None), ("m", NIGHT.model_copy(update={"label": ""}))}
    assert together["m", None].score.tolist() == pytest.approx([0.6, 0.65])


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1)), min_size=1, max_size=60), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_a_mean_overlap_lies_in_its_interval_and_weighs_sources_alike(rows: list[tuple[int, float]], seed: int) -> None:
    source, scores = np.array([place for place, _ in rows]), np.array([score for _, score in rows])
    overlap = mean_overlap(scores, source, seed)
    means = [scores[source == place].mean() for place in np.unique(source)]
    assert overlap.value == pytest.approx(np.mean(means))
    assert overlap.value is not None
    assert 0 <= overlap.low <= overlap.value + 1e-9
    assert overlap.value - 1e-9 <= overlap.high <= 1
    assert (overlap.n, overlap.sources) == (len(rows), len(means))
