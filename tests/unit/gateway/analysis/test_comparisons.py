"""Comparing effects: a planted difference is found, equal models show none, and both pairings weigh images alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.analysis.comparisons import (
    CellRows,
    DifferingEffect,
    PairedImages,
    cell_rows,
    compare_cells,
    list_disagreements,
    number_alike,
)
from gateway.analysis.effects import Counting, Scores
from shared.schemas.comparisons import CellDifference, Pairing
from shared.schemas.effects import Cell
from shared.schemas.masks import ALL_CLASSES

VALUES = ("night", "rain", "snow")
CELLS = [Cell(label="bus", factor="weather", value=value, direction="to") for value in VALUES]
NIGHT, RAIN, SNOW = CELLS


def scores(right: NDArray[np.bool_], null: NDArray[np.bool_] | None = None) -> Scores:
    """A model that is right (n sources × k edits) on edits to the first k values, and on their null arms."""
    sources, edits = right.shape
    count = sources * edits
    ordinal = np.tile(np.arange(edits), sources)
    nulls = np.ones(right.shape, bool) if null is None else null
    return Scores(
        source=np.repeat(np.arange(sources), edits),
        ordinal=ordinal,
        original=np.ones(count),
        image=np.arange(count),
        null=nulls.ravel().astype(float),
        counterfactual=right.ravel().astype(float),
        whole=np.arange(count),
        cells={CELLS[edit]: np.flatnonzero(ordinal == edit) for edit in range(edits)},
        group=np.repeat(np.arange(sources), edits),
    )


def draw(random: np.random.Generator, sources: int, accuracies: list[float]) -> Scores:
    """A model that is right on edits with these probabilities, and nine times in ten on their arms."""
    shape = (sources, len(accuracies))
    return scores(random.random(shape) < accuracies, random.random(shape) < 0.9)


def compared(
    this: Scores, other: Scores, pairing: Pairing = "edit", seed: int = 1
) -> dict[Cell | None, CellDifference]:
    rows = compare_cells(cell_rows(this, other, "labelled", pairing), seed)
    return {row.cell: row for row in rows}


def test_a_planted_difference_is_found_in_its_cell() -> None:
    random = np.random.default_rng(1)
    weak_at_night = draw(random, 60, [0.15, 0.85, 0.85])
    sound = draw(random, 60, [0.85, 0.85, 0.85])
    rows = compared(weak_at_night, sound)
    night = rows[NIGHT]
    assert night.judgement == "worse"
    assert night.selected_interval is not None
    assert night.selected_interval.low < night.difference < night.selected_interval.high < -0.05
    assert night.difference == pytest.approx(night.effect - night.other_effect)
    assert {rows[RAIN].judgement, rows[SNOW].judgement} == {"no difference found"}
    assert compared(sound, weak_at_night)[NIGHT].judgement == "better"
    assert next(iter(compared(weak_at_night, sound))) == NIGHT, "differences come first"


@pytest.mark.slow
@pytest.mark.parametrize("pairing", ["edit", "source image"])
def test_a_planted_difference_is_found_in_most_simulations(pairing: Pairing) -> None:
    random = np.random.default_rng(2)
    judgements = [
        compared(draw(random, 60, [0.2, 0.8]), draw(random, 60, [0.8, 0.8]), pairing, seed)[NIGHT].judgement
        for seed in range(12)
    ]
    assert judgements.count("worse") >= 10


@pytest.mark.slow
@pytest.mark.parametrize("pairing", ["edit", "source image"])
def test_equal_models_differ_in_at_most_one_comparison_of_twenty(pairing: Pairing) -> None:
    """Both models lose 30 points everywhere. A comparison errs if it calls a difference in any of its cells."""
    random = np.random.default_rng(3)
    wrong = 0
    for seed in range(60):
        rows = compared(draw(random, 40, [0.6, 0.6, 0.6]), draw(random, 40, [0.6, 0.6, 0.6]), pairing, seed)
        wrong += any(row.judgement in ("worse", "better") for row in rows.values())
    assert wrong <= 3


@pytest.mark.slow
def test_intervals_cover_the_difference() -> None:
    random = np.random.default_rng(4)
    covered = 0
    for seed in range(60):
        interval = compared(draw(random, 40, [0.5]), draw(random, 40, [0.8]), seed=seed)[NIGHT].interval
        assert interval is not None
        covered += interval.low <= -0.3 <= interval.high
    assert covered >= 55


def test_source_images_of_a_group_give_one_difference() -> None:
    images = PairedImages(np.arange(4), np.array([7, 7, 9, 9]), np.array([0.5, 0, 1, 1]), np.array([0, 0, -0.5, 0]))
    assert images.differences().tolist() == [0.25, 1.25]


def test_differences_beyond_one_are_possible() -> None:
    """One model loses everything, the other wins everything: −100 points against +100."""
    sources = 40
    lost = scores(np.zeros((sources, 1), bool))
    won = scores(np.ones((sources, 1), bool), np.zeros((sources, 1), bool))
    night = compared(lost, won)[NIGHT]
    assert (night.effect, night.other_effect, night.difference) == (-1.0, 1.0, -2.0)
    assert night.interval is not None
    assert night.interval.low == pytest.approx(-2)
    assert night.interval.high < -1


def test_fewer_than_12_groups_are_not_tested() -> None:
    random = np.random.default_rng(5)
    this, other = draw(random, 40, [0.0]), draw(random, 40, [1.0])
    few = np.arange(40) % 11
    number = np.arange(40)
    rows = compared(number_alike(this, number, few), number_alike(other, number, few))
    assert {row.judgement for row in rows.values()} == {"too few images"}
    assert {(row.sources, row.groups) for row in rows.values()} == {(40, 11)}
    assert {row.interval for row in rows.values()} == {None}


def test_sources_of_one_side_alone_are_left_out() -> None:
    """The sides share two source images, which they number differently."""
    this = number_alike(scores(np.array([[True], [False], [False]])), np.array([0, 1, -1]), np.array([0, 1, -1]))
    other = number_alike(scores(np.array([[False], [True], [True]])), np.array([-1, 1, 0]), np.array([-1, 1, 0]))
    images = cell_rows(this, other, "labelled", "source image")[NIGHT].images()
    assert images.image.tolist() == [0, 1]
    assert (images.effect.tolist(), images.other_effect.tolist()) == ([0.0, -1.0], [0.0, 0.0])


def test_pairs_by_counterfactual_need_both_and_pairs_by_source_image_one_of_each() -> None:
    """The first side lacks the edit to rain of the second source image."""
    this, other = scores(np.array([[False, True], [True, True]])), scores(np.array([[True, True], [True, False]]))
    lacking = replace(this, counting=Counting(np.array([True, True, True, False]), np.ones(4, bool)))
    by_edit = cell_rows(lacking, other, "labelled", "edit")[None].images()
    by_source = cell_rows(lacking, other, "labelled", "source image")[None].images()
    assert by_edit.other_effect.tolist() == [0.0, 0.0]
    assert by_source.other_effect.tolist() == [0.0, -0.5]
    assert by_edit.effect.tolist() == by_source.effect.tolist() == [-0.5, 0.0]
    assert cell_rows(lacking, other, "labelled", "edit")[RAIN].images().image.tolist() == [0]


def test_cells_of_one_side_are_not_compared() -> None:
    this, other = scores(np.ones((3, 3), bool)), scores(np.ones((3, 2), bool))
    assert set(cell_rows(this, other, "labelled", "source image")) == {None, NIGHT, RAIN}


def test_without_ground_truth_classes_are_taken_together() -> None:
    this, other = scores(np.ones((4, 1), bool)), scores(np.ones((4, 1), bool))
    car = NIGHT.model_copy(update={"label": "car"})
    this = replace(this, cells={NIGHT: np.array([0, 1]), car: np.array([2, 3])})
    cells = cell_rows(this, other, "metamorphic", "edit")
    assert set(cells) == {None, NIGHT.model_copy(update={"label": ""})}
    assert all(len(rows.rows) == 4 for rows in cells.values())


def disagreements(cell: CellRows, start: int = 0) -> list[DifferingEffect]:
    return list_disagreements(cell, start, 10)[0]


def segmenter(bus: NDArray[np.float64], car: NDArray[np.float64]) -> Scores:
    """A segmenter's IoU of two classes on a counterfactual (night) of each source image; 0.9 on the null arms."""
    images = len(bus)
    rows = np.arange(3 * images).reshape(images, 3)
    labels = ("bus", "car", ALL_CLASSES)
    return Scores(
        source=np.arange(images),
        ordinal=np.zeros(images, np.int64),
        original=np.full(images, 0.9),
        image=np.repeat(np.arange(images), 3),
        null=np.full(3 * images, 0.9),
        counterfactual=np.stack([bus, car, (bus + car) / 2], axis=1).ravel(),
        whole=rows[:, 2],
        cells={NIGHT.model_copy(update={"label": label}): rows[:, place] for place, label in enumerate(labels)},
    )


def test_segmenters_are_compared_by_class_and_on_the_whole_image() -> None:
    overlap = np.random.default_rng(6).uniform(0.7, 0.9, (2, 40))
    worse, sound = segmenter(overlap[0] - 0.6, overlap[1]), segmenter(overlap[0], overlap[1])
    rows = {row.cell.label: row for row in compared(worse, sound).values() if row.cell}
    assert {label: row.judgement for label, row in rows.items()} == {
        "bus": "worse",
        "car": "no difference found",
        ALL_CLASSES: "worse",
    }
    assert rows["bus"].difference == pytest.approx(-0.6)
    assert rows[ALL_CLASSES].difference == pytest.approx(-0.3)
    car = NIGHT.model_copy(update={"label": "car"})
    assert list_disagreements(cell_rows(worse, sound, "labelled", "edit")[car], 0, 10) == ([], 0)
    assert list_disagreements(cell_rows(worse, sound, "labelled", "edit")[None], 0, 10)[1] == 40


def test_disagreements_come_by_size_and_name_their_counterfactuals() -> None:
    this = scores(np.array([[True, True], [False, False], [True, False]]))
    other = scores(np.array([[True, True], [True, True], [True, True]]))
    by_edit = cell_rows(this, other, "labelled", "edit")[None]
    expected = [
        DifferingEffect(1, -1.0, 0.0, (0,), (0,)),
        DifferingEffect(1, -1.0, 0.0, (1,), (1,)),
        DifferingEffect(2, -1.0, 0.0, (1,), (1,)),
    ]
    assert disagreements(by_edit) == expected
    assert (disagreements(by_edit, 2), list_disagreements(by_edit, 2, 10)[1]) == (expected[2:], 3)
    by_source = cell_rows(this, other, "labelled", "source image")[None]
    assert disagreements(by_source) == [
        DifferingEffect(1, -1.0, 0.0, (0, 1), (0, 1)),
        DifferingEffect(2, -0.5, 0.0, (1, 0), (0, 1)),
    ]
    assert disagreements(cell_rows(this, this, "labelled", "edit")[None]) == []
