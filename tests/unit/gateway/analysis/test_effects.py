"""Effects per source image, against plain loops."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.analysis.effects import Outcomes, Predictions, Ranks, Units, differences
from gateway.analysis.findings import assess
from shared.schemas.effects import Cell

CELL = Cell(label="bus", factor="weather", value="night", direction="to")


def outcomes_of(
    source: list[int], rank: list[int], null_rank: list[int], p: list[float], null_p: list[float]
) -> Outcomes:
    """Outcomes with originals that were all right."""
    rows = np.arange(len(source))
    originals = Predictions(np.ones(len(rows)), np.ones(len(rows), np.int64), np.zeros(len(rows), np.int64))
    return Outcomes.of(
        Ranks(
            originals,
            Predictions(np.array(null_p), np.array(null_rank, np.int64), np.zeros(len(rows), np.int64)),
            Predictions(np.array(p), np.array(rank, np.int64), np.zeros(len(rows), np.int64)),
        ),
        source=np.array(source, np.int64),
        ordinal=rows,
        null_arm=rows,
        cells={CELL: rows},
    )


def test_each_source_counts_once_however_many_counterfactuals_it_has() -> None:
    outcomes = outcomes_of([0, 0, 0, 0, 7], [2, 2, 1, 3, 1], [1, 1, 1, 1, 2], [0.1, 0.2, 0.9, 0.2, 0.6], [0.8] * 5)
    by_source = differences(outcomes, outcomes.cells[CELL])
    assert by_source.group.tolist() == [0, 7]
    np.testing.assert_allclose(by_source.correct, [-0.75, 1.0])
    np.testing.assert_allclose(by_source.p_truth, [-0.45, -0.2])
    assert by_source.counterfactuals == 5


def test_a_damaging_generator_is_not_blamed_on_the_edit() -> None:
    """Null arms that fail as often as the counterfactuals leave no effect."""
    outcomes = outcomes_of([0, 1, 2], [4, 4, 4], [4, 4, 4], [0.1] * 3, [0.1] * 3)
    assert not differences(outcomes, outcomes.cells[CELL]).correct.any()


_row = st.tuples(
    st.integers(0, 5), st.integers(1, 3), st.integers(1, 3), st.floats(0, 1, width=32), st.floats(0, 1, width=32)
)


@given(st.lists(_row, min_size=1, max_size=40))
def test_equals_a_plain_loop(rows: list[tuple[int, int, int, float, float]]) -> None:
    outcomes = outcomes_of(*(list(column) for column in zip(*rows, strict=True)))
    by_source = differences(outcomes, outcomes.cells[CELL])
    for place, source in enumerate(by_source.group):
        mine = [row for row in rows if row[0] == source]
        correct = [(row[1] == 1) - (row[2] == 1) for row in mine]
        p_truth = [row[3] - row[4] for row in mine]
        assert abs(by_source.correct[place] - sum(correct) / len(mine)) < 1e-9
        assert abs(by_source.p_truth[place] - sum(p_truth) / len(mine)) < 1e-9


_unit = st.tuples(st.integers(0, 9), st.floats(-1, 1, width=32))


@given(st.lists(_unit, min_size=1, max_size=40))
def test_groups_count_once_however_many_source_images_they_have(rows: list[tuple[int, float]]) -> None:
    """Source images 0 to 9 in groups of three, against a plain loop."""
    source = np.array([number for number, _ in rows])
    values = np.array([value for _, value in rows])
    units = Units.of(source, source // 3)
    assert units.group.tolist() == sorted({number // 3 for number, _ in rows})
    assert units.sources == len({number for number, _ in rows})
    for group, mean in zip(units.group, units.means(values), strict=True):
        members = sorted({number for number, _ in rows if number // 3 == group})
        of_source = [np.mean([value for number, value in rows if number == member]) for member in members]
        assert abs(mean - np.mean(of_source)) < 1e-9


def test_frames_of_one_sequence_are_one_observation() -> None:
    """Sixty lost frames of four sequences are four losses: too few."""
    outcomes = outcomes_of([*range(60)], [2] * 60, [1] * 60, [0.1] * 60, [0.9] * 60)
    grouped = dataclasses.replace(outcomes, group=np.arange(60) // 15)
    (alone,) = assess({CELL: differences(outcomes, outcomes.cells[CELL])}, seed=1)
    (together,) = assess({CELL: differences(grouped, grouped.cells[CELL])}, seed=1)
    assert (alone.standing, alone.sources, alone.groups) == ("weakness", 60, None)
    assert (together.standing, together.sources, together.groups) == ("too few images", 60, 4)
