"""The cost of one more source image and of one more rendering, from the evaluations of a method's rows."""

from __future__ import annotations

import pytest

from gateway.kinds.rows import CounterfactualRow
from gateway.results.job_rows import MethodRows


def method_rows(edits: int, arms: int, evaluations: int | None, sources: int = 5) -> MethodRows:
    rows = MethodRows()
    for source in range(sources):
        for ordinal in range(edits + arms):
            arm = "edit" if ordinal < edits else "null"
            rows.add(
                CounterfactualRow(
                    position=source, id=f"{source}-{ordinal}", source_image_id=str(source), method="dillema",
                    ordinal=ordinal, arm=arm, null_ordinal=None, changes=[], rendered=True, accepted=True, check="",
                    evaluations=evaluations,
                ),
                source,
            )  # fmt: skip
    return rows


@pytest.mark.parametrize(
    ("edits", "arms", "evaluations", "expected"),
    [
        (4, 4, 20, (0.0, 40.0)),  # each rendering has its own null arm
        (4, 1, 20, (20.0, 20.0)),  # a source image has one for all
        (4, 1, 0, (1.0, 1.0)),  # corruptions cost no evaluation
        (4, 1, None, (1.0, 1.0)),
        (1, 0, 20, (0.0, 20.0)),
    ],
)
def test_arms_that_edits_share_are_the_cost_of_a_source_image(
    edits: int, arms: int, evaluations: int | None, expected: tuple[float, float]
) -> None:
    assert tuple(method_rows(edits, arms, evaluations).cost()) == pytest.approx(expected)
    assert method_rows(0, 0, None).cost().rendering > 0
