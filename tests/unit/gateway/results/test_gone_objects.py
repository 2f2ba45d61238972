"""An object that the check `presence` loses in one arm of a pair counts in neither; a class without any is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from gateway.analysis.components import RenderingCost
from gateway.kinds import KINDS
from gateway.kinds.rows import CounterfactualRow, PredictionRow, SourceNumbers
from gateway.kinds.task_kind import Measurement
from gateway.results.pairing import triples
from gateway.results.rows import ModelRows, ScoreColumns
from gateway.results.stream import SourceRow, SourceRows
from shared.schemas.boxes import PredictedBox, TrueBox
from shared.schemas.effects import Cell
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.metrics import DetectionMetrics

KIND = KINDS["detection"]
CLASSES = ("car", "person")
TRUTH = [
    TrueBox(box=(0, 0, 20, 20), label="car"),
    TrueBox(box=(40, 0, 60, 20), label="car"),
    TrueBox(box=(0, 40, 20, 60), label="person"),
]
CAR, SECOND_CAR, PERSON = range(3)


def prediction(
    image: str | None, found: Iterable[int], gone: Iterable[int] = (), added: Sequence[TrueBox] = ()
) -> PredictionRow:
    boxes = [*(TRUTH[place] for place in found), *added]
    answer = [PredictedBox(box=it.box, label=it.label, score=0.9) for it in boxes]
    scored = KIND.judge(answer, [*KIND.without(TRUTH, frozenset(gone)), *added], CLASSES)
    return PredictionRow(0, "source", image, "m", scored.predicted, 0.9, None, scored.scores, scored.detail)


def row(name: str, ordinal: int, arm: str, null: int | None = None) -> CounterfactualRow:
    change = {"factor": "weather", "from_phrase": "", "to_phrase": "", "from_value": "", "to_value": "night"}
    changes = [change] if arm == "edit" else []
    return CounterfactualRow(0, name, "source", "instruct", ordinal, arm, null, changes, True, True, "", 1)  # type: ignore[arg-type]


def measured(*predictions: PredictionRow) -> ModelRows:
    rows = [row("edit", 0, "edit", 1), row("null", 1, "null")]
    columns = ScoreColumns(KIND.detail(CLASSES))
    source = SourceRows(SourceRow(0, "source", "done", None, ["car", "person"]), rows, list(predictions))
    columns.add(SourceNumbers(0, 0), source, list(triples(rows)), source.predictions_of("m"))
    return columns.rows()


def cell(label: str) -> Cell:
    return Cell(label=label, factor="weather", value="night", direction="to")


@pytest.mark.parametrize("gone_in", ["edit", "null"])
def test_a_gone_object_counts_in_no_arm_and_a_class_without_any_left_is_bounded(gone_in: str) -> None:
    """The model loses the second car; the first is there in both arms, the person in one of them."""
    everything = (CAR, SECOND_CAR, PERSON)
    gone = {arm: (PERSON,) if arm == gone_in else () for arm in ("edit", "null")}
    rows = measured(
        prediction(None, everything),
        prediction("null", everything, gone["null"]),
        prediction("edit", [CAR], gone["edit"]),
    )
    scores = rows.scores
    assert {it.label: scores.counterfactual[members].tolist() for it, members in scores.cells.items()} == {
        "car": [0.5], ALL_CLASSES: [0.5]
    }  # fmt: skip
    assert scores.null.tolist() == [1.0, 1.0]
    refused, screened = rows.refused[cell("person")], rows.screened[cell("person")]
    assert refused.lost.tolist() == screened.accepted.tolist() == [gone_in == "null"], "as if the edit were refused"
    assert (refused.low.tolist(), refused.high.tolist()) == ({"edit": [-1.0], "null": [-1.0]}[gone_in], [0.0])
    assert cell("car") not in rows.refused
    figures = KIND.figures(rows.own, Measurement("instruct", RenderingCost(0, 0), (), 0, labelled=True))["detection"]
    assert isinstance(figures, DetectionMetrics)
    assert [arm.objects for arm in (figures.all_originals, figures.originals, figures.nulls)] == [3, 2, 2]
    assert [(of.found, of.objects) for of in figures.counterfactuals.classes] == [(1, 2), (0, 0)]
    assert figures.counterfactuals.hallucinations == figures.nulls.hallucinations == 0, "nor is a box there an extra"


def test_a_pair_without_a_common_object_does_not_count_and_is_not_left_out() -> None:
    rows = measured(
        prediction(None, [CAR]), prediction("null", [CAR], [SECOND_CAR, PERSON]), prediction("edit", [], [CAR])
    )
    assert len(rows.scores.source) == rows.left_out == 0
    assert set(rows.refused) == {cell("car"), cell("person"), cell(ALL_CLASSES)}


def test_what_the_editor_added_is_in_its_own_image_alone_and_no_hallucination_there() -> None:
    added = [TrueBox(box=(60, 60, 80, 80), label="car", ignore="difficult")]
    everything = (CAR, SECOND_CAR, PERSON)
    rows = measured(
        prediction(None, everything), prediction("null", everything), prediction("edit", [CAR, PERSON], added=added)
    )
    figures = KIND.figures(rows.own, Measurement("instruct", RenderingCost(0, 0), (), 0, labelled=True))["detection"]
    assert isinstance(figures, DetectionMetrics)
    assert (figures.counterfactuals.objects, figures.counterfactuals.found) == (3, 2)
    assert (figures.counterfactuals.hallucinations, figures.lost.value) == (0, 1.0)
