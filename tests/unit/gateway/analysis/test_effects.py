"""Effects per source image, against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.analysis.effects import Outcomes, Predictions, differences
from shared.schemas.results import Cell

CELL = Cell(label="bus", factor="weather", value="night", direction="to")


def outcomes_of(
    source: list[int], rank: list[int], null_rank: list[int], p: list[float], null_p: list[float]
) -> Outcomes:
    """Outcomes with originals that were all right."""
    rows = np.arange(len(source))
    originals = Predictions(np.ones(len(rows)), np.ones(len(rows), np.int64), np.zeros(len(rows), np.int64))
    return Outcomes(
        source=np.array(source, np.int64),
        ordinal=rows,
        null_arm=rows,
        original=originals,
        null=Predictions(np.array(null_p), np.array(null_rank, np.int64), np.zeros(len(rows), np.int64)),
        counterfactual=Predictions(np.array(p), np.array(rank, np.int64), np.zeros(len(rows), np.int64)),
        cells={CELL: rows},
    )


def test_each_source_counts_once_however_many_counterfactuals_it_has() -> None:
    outcomes = outcomes_of([0, 0, 0, 0, 7], [2, 2, 1, 3, 1], [1, 1, 1, 1, 2], [0.1, 0.2, 0.9, 0.2, 0.6], [0.8] * 5)
    by_source = differences(outcomes, outcomes.cells[CELL])
    assert by_source.source.tolist() == [0, 7]
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
    for place, source in enumerate(by_source.source):
        mine = [row for row in rows if row[0] == source]
        correct = [(row[1] == 1) - (row[2] == 1) for row in mine]
        p_truth = [row[3] - row[4] for row in mine]
        assert abs(by_source.correct[place] - sum(correct) / len(mine)) < 1e-9
        assert abs(by_source.p_truth[place] - sum(p_truth) / len(mine)) < 1e-9
