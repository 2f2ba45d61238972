"""A detector that hallucinates more under a value has a finding of its own family, with the tests of recall."""

from __future__ import annotations

from functools import partial

from gateway.analysis.effects import differences
from gateway.analysis.findings import assess
from gateway.kinds import KINDS
from gateway.kinds.rows import CounterfactualRow, PredictionRow, SourceNumbers
from gateway.kinds.task_kind import ScoresAlone
from gateway.results.estimands import counted_cells
from gateway.results.pairing import triples
from gateway.results.rows import ModelRows, ScoreColumns
from gateway.results.stream import SourceRow, SourceRows
from shared.schemas.boxes import PredictedBox, TrueBox
from shared.schemas.masks import ALL_CLASSES

KIND = KINDS["detection"]
CLASSES = ("car", "bus")
CAR = TrueBox(box=(0, 0, 20, 20), label="car")
GHOST = PredictedBox(box=(40, 40, 60, 60), label="bus", score=0.8)
SOURCES = 30


def prediction(image: str | None, truth: list[TrueBox], *, ghost: bool) -> PredictionRow:
    answer = [*([GHOST] if ghost else []), *(PredictedBox(box=it.box, label=it.label, score=0.9) for it in truth[:1])]
    scored = KIND.judge(answer, truth, CLASSES)
    row = PredictionRow(0, "source", image, "m", scored.predicted, 0.9, None, scored.scores, scored.detail)
    assert KIND.other_score is not None
    return KIND.other_score(row)


def edit(name: str, ordinal: int, value: str) -> list[CounterfactualRow]:
    change = {"factor": "weather", "from_phrase": "", "to_phrase": "", "from_value": "", "to_value": value}
    arms = [(name, ordinal, "edit", ordinal + 1, [change]), (f"{name} null", ordinal + 1, "null", None, [])]
    return [
        CounterfactualRow(0, id_, "source", "instruct", place, arm, null, changes, True, True, "", 1)  # type: ignore[arg-type]
        for id_, place, arm, null, changes in arms
    ]


def columns() -> ModelRows:
    """In fog a bus is hallucinated, on every second image of a street without objects; in rain an editor added one."""
    collected = ScoreColumns(ScoresAlone())
    for source in range(SOURCES):
        truth = [CAR] if source % 2 else []
        added = [*truth, TrueBox(box=GHOST.box, label="bus", ignore="difficult")]
        rows = [*edit("fog", 0, "fog"), *edit("rain", 2, "rain")]
        predictions = [
            prediction(None, truth, ghost=False),
            prediction("fog", truth, ghost=True),
            prediction("fog null", truth, ghost=False),
            prediction("rain", added if truth else [added[-1]], ghost=True),
            prediction("rain null", truth, ghost=False),
        ]
        of_source = SourceRows(SourceRow(0, "source", "done", None, ["car"]), rows, predictions)
        numbers = SourceNumbers(source, source)
        collected.add(numbers, of_source, list(triples(rows)), of_source.predictions_of("m"))
    return collected.rows()


def test_hallucinating_more_under_a_value_is_a_finding() -> None:
    rows = columns()
    cells = counted_cells(rows.scores.cells, partial(differences, rows.scores))
    effects = {effect.cell.value: effect for effect in assess(cells, 0)}
    assert {effect.cell.label for effect in effects.values()} == {ALL_CLASSES}
    assert (effects["fog"].standing, effects["fog"].sources) == ("weakness", SOURCES), "images without objects count"
    assert (effects["rain"].standing, effects["rain"].delta_accuracy) == ("nothing found", 0), "the editor's bus"
