"""The paper's editor beside the profile's: what refuses the edits of each job, and what an accepted one costs."""

from __future__ import annotations

from gateway.methods import read_method
from research.paper_tables.editor import EDITORS, THRESHOLDS, Column, table
from research.paper_tables.rows import FactorFigures
from research.statistics.rates import wilson
from shared.schemas.results import CheckCount, Cost, Funnel


def column(title: str, accepted: int, *refused: CheckCount) -> Column:
    judged = FactorFigures(
        factor="all", as_asked=wilson(9, 10), accepted=wilson(accepted, 10), kept=wilson(accepted, accepted),
        kept_flipped=wilson(0, 0), shown=wilson(1, accepted), unchanged=wilson(0, 0), each_unchanged=wilson(0, 0),
        deltas={},
    )  # fmt: skip
    funnel = Funnel(
        method="lance", proposed=10, refused_by_text=[CheckCount(check="word diff", count=1)], rendered=9,
        refused_by_image=list(refused), accepted=wilson(accepted, 10),
    )  # fmt: skip
    cost = Cost(
        method="lance", evaluations=1968, evaluations_per_rendered=219, evaluations_per_accepted=1968 / accepted
    )
    return title, funnel, cost, judged


def test_the_table_says_which_check_refuses_what() -> None:
    text = table(
        [column("a", 2, CheckCount(check="likeness", count=7)), column("b", 4, CheckCount(check="match", count=5))]
    )
    assert "|  | a | b |" in text
    assert "| … refused by their words | 1 | 1 |" in text
    assert "| … refused by `likeness` | 7 | 0 |" in text
    assert "| … refused by `match` | 0 | 5 |" in text
    assert "| accepted, of all edits | 20 % (2/10;" in text
    assert "| evaluations per accepted | 984 | 492 |" in text


def test_the_editors_and_thresholds_are_parameters_of_lance() -> None:
    for editor in EDITORS.values():
        for thresholds in THRESHOLDS.values():
            assert read_method("lance", {**editor, **thresholds}).name == "lance"
