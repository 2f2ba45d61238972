"""The yardstick's score: known tables with known scores, and properties of any answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.analysis import limits
from research.statistics.rates import wilson
from research.yardstick.formats import Answer, AnswerKey, FoundCell, KnownModel, Planting, TrueEffect
from research.yardstick.printing import format_answer, format_key
from research.yardstick.score import BEYOND, dose_of, score, truth_of
from shared.schemas.effects import Cell, Direction


def cell(value: str, label: str = "bus", direction: Direction = "to") -> Cell:
    return Cell(label=label, factor="weather", value=value, direction=direction)


def true(value: str, effect: float, *, label: str = "bus", half: float = 0.03) -> TrueEffect:
    low, high = max(-1.0, effect - half), min(1.0, effect + half)
    return TrueEffect(cell=cell(value, label), effect=effect, low=low, high=high, n=400)


def planted(value: str, label: str = "bus") -> Planting:
    return Planting(kind="relabelled", cell=cell(value, label), called="truck", places=["city"])


SEPIA = TrueEffect(
    cell=Cell(label="car", factor="domain", value="sepia", direction="to"), effect=-0.6, low=-0.65, high=-0.55, n=400
)
KEY = AnswerKey(
    command="by hand",
    seed=0,
    scenes_per_class=400,
    fields=["time", "weather"],
    interval="by hand",
    models=[
        KnownModel(
            name="weak",
            weights="w",
            planted=[planted("night"), planted("snow")],
            accuracy=wilson(97, 100),
            # one cell of each dose, a null, an improvement, and one too near 5 points to call
            cells=[
                true("night", -0.62),
                true("snow", -0.31),
                true("fog", -0.14),
                true("rain", 0.01, half=0.02),
                true("clear", 0.2),
                true("day", -0.05),
            ],
            outside=[],
        ),
        KnownModel(
            name="clean",
            weights="c",
            planted=[],
            accuracy=wilson(99, 100),
            cells=[true("night", -0.01, half=0.02), true("snow", 0.0, half=0.02)],
            outside=[],
        ),
        KnownModel(
            name="sepia", weights="s", planted=[], accuracy=wilson(99, 100), cells=[true("night", 0.0)], outside=[SEPIA]
        ),
    ],
)
NAMES = [model.name for model in KEY.models]
ORDERED = ("first_findings", "all_cells", "cells_with_effect", "weaknesses")  # of a score: depend on the cells' order


def reported(model: str, of: TrueEffect, *, finding: bool, by: float = 0.0, half: float = 0.05) -> FoundCell:
    effect = max(-1.0, min(1.0, of.effect + by))
    low, high = max(-1.0, effect - half), min(1.0, effect + half)
    return FoundCell(model=model, cell=of.cell, effect=effect, low=low, high=high, finding=finding, images=40)


def perfect(by: float = 0.0, half: float = 0.05) -> Answer:
    cells = [
        reported(model.name, of, finding=truth_of(of) in ("weakness", "improvement"), by=by, half=half)
        for model in KEY.models
        for of in model.cells
    ]
    return Answer(method="someone", models=NAMES, factors=["weather"], cells=cells)


def test_kinds_of_truth_and_doses() -> None:
    weak = KEY.models[0].cells
    kinds = [truth_of(effect) for effect in weak]
    assert kinds == ["weakness", "weakness", "weakness", "null", "improvement", "unsettled"]
    assert [dose_of(effect) for effect in weak[:3]] == [60, 30, 15]


def test_the_right_answer_has_the_full_score() -> None:
    result = score(KEY, perfect())
    assert [(dose.dose, dose.found, dose.missed, dose.untested) for dose in result.doses] == [
        (15, 1, 0, 0),
        (30, 1, 0, 0),
        (60, 1, 0, 0),
    ]
    assert (result.improvements.count, result.improvements.n) == (1, 1)
    assert (result.found, result.invented, result.precision.value) == (4, 0, 1.0)
    assert result.false_discovery_rate == 0
    assert (result.first_findings.count, result.first_findings.n) == (1, 1)
    assert result.coverage.value == result.outside_untested.value == 1.0
    assert result.cells_with_effect.n == 4
    assert result.cells_with_effect.rank_correlation == pytest.approx(1.0)
    assert [result.all_cells.bias, result.all_cells.rmse] == pytest.approx([0, 0])


def test_silence_finds_nothing_and_invents_nothing() -> None:
    result = score(KEY, Answer(method="mute", models=NAMES, factors=["weather"], cells=[]))
    assert [(dose.found, dose.missed, dose.untested) for dose in result.doses] == [(0, 0, 1), (0, 0, 1), (0, 0, 1)]
    assert (result.precision.value, result.all_cells.n, result.coverage.n) == (None, 0, 0)
    assert (result.first_findings.count, result.first_findings.n) == (0, 1)
    assert "nothing tested" in format_answer(result)


def test_factors_outside_the_question_count_as_no_miss() -> None:
    result = score(KEY, Answer(method="mute", models=NAMES, factors=["background"], cells=[]))
    assert sum(dose.recall.n for dose in result.doses) == result.first_findings.n == 0


@pytest.mark.parametrize("by", [-0.1, 0.04, 0.1])
def test_a_constant_error_is_the_bias(by: float) -> None:
    result = score(KEY, perfect(by=by, half=0.06))
    assert result.all_cells.bias == pytest.approx(100 * by)
    assert result.all_cells.rmse == pytest.approx(100 * abs(by))
    assert result.coverage.value == (1.0 if abs(by) <= 0.06 else 0.0)


def test_understated_weaknesses_do_not_cancel_against_understated_improvements() -> None:
    cells = [reported("weak", of, finding=True, by=-of.effect / 2) for of in KEY.models[0].cells[:5]]
    result = score(KEY, Answer(method="half", models=["weak"], factors=["weather"], cells=cells))
    assert result.weaknesses.n == 3
    assert result.weaknesses.bias == pytest.approx((31 + 15.5 + 7) / 3)
    assert result.cells_with_effect.n == 4
    assert result.cells_with_effect.bias == pytest.approx((31 + 15.5 + 7 - 10) / 4)


def test_a_finding_with_the_wrong_sign_is_invented() -> None:
    wrong = reported("weak", true("night", 0.62), finding=True)
    result = score(KEY, Answer(method="upside down", models=["weak"], factors=["weather"], cells=[wrong]))
    assert (result.found, result.invented) == (0, 1)
    assert result.first_findings.count == 0
    assert result.false_discovery_rate == 1.0


def test_findings_in_null_cells_are_counted_over_all_null_cells() -> None:
    cells = [reported("clean", of, finding=of.cell.value == "night") for of in KEY.models[1].cells]
    result = score(KEY, Answer(method="nervous", models=["clean", "sepia"], factors=["weather"], cells=cells))
    nulls = result.false_discoveries_over_null_cells
    assert (nulls.count, nulls.n, result.invented) == (1, 2, 1)
    assert result.false_discovery_rate == pytest.approx(0.5)  # all of one model's findings, none of the other's


def test_a_finding_too_near_five_points_counts_neither_way() -> None:
    near = reported("weak", KEY.models[0].cells[5], finding=True)
    result = score(KEY, Answer(method="bold", models=["weak"], factors=["weather"], cells=[near]))
    assert (result.found, result.invented, result.undecided, result.false_discovery_rate) == (0, 0, 1, 0.0)


def test_the_first_finding_must_be_the_large_plant() -> None:
    night, snow = (reported("weak", of, finding=True) for of in KEY.models[0].cells[:2])
    late = Answer(method="late", models=["weak"], factors=["weather"], cells=[snow, night])
    assert score(KEY, late).first_findings.count == 0


def test_claiming_to_have_tested_what_no_caption_can_say_is_noticed() -> None:
    answer = Answer(
        method="boaster", models=["sepia"], factors=["domain"], cells=[reported("sepia", SEPIA, finding=True)]
    )
    result = score(KEY, answer)
    assert (result.outside_untested.count, result.outside_untested.n, result.unknown_cells) == (0, 1, 1)


def test_provisional_findings_are_counted() -> None:
    cells = [cell.model_copy(update={"provisional": cell.cell.value != "night"}) for cell in perfect().cells]
    result = score(KEY, perfect().model_copy(update={"cells": cells}))
    assert (result.provisional.count, result.provisional.n) == (3, 4)


def test_a_finding_means_the_same_as_in_reports() -> None:
    assert limits.BEYOND == BEYOND


def test_an_answer_about_strangers_is_refused() -> None:
    with pytest.raises(ValueError, match="mine"):
        score(KEY, Answer(method="x", models=["mine"], factors=["weather"], cells=[]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"low": 0.1, "high": -0.1}, "above"),
        ({"low": None}, "both ends"),
        ({"effect": None, "finding": True}, "needs an `effect`"),
        ({"effect": -60}, "greater than or equal to -1"),
    ],
)
def test_incoherent_cells_are_refused(change: dict[str, float | bool | None], sentence: str) -> None:
    right = reported("weak", KEY.models[0].cells[0], finding=False).model_dump()
    with pytest.raises(ValidationError, match=sentence):
        FoundCell.model_validate({**right, **change})


def test_repeated_and_unknown_cells_are_refused() -> None:
    once = reported("weak", KEY.models[0].cells[0], finding=False)
    with pytest.raises(ValidationError, match="twice"):
        Answer(method="x", models=["weak"], factors=["weather"], cells=[once, once])
    with pytest.raises(ValidationError, match="name it in `models`"):
        Answer(method="x", models=["clean"], factors=["weather"], cells=[once])


EFFECTS = st.floats(-1, 1, allow_nan=False)


@given(st.lists(st.tuples(EFFECTS, st.booleans(), st.booleans()), min_size=9, max_size=9), st.randoms())
def test_what_holds_for_any_answer(guesses: list[tuple[float, bool, bool]], random: object) -> None:
    places = [(model.name, of) for model in KEY.models for of in model.cells]
    cells = [
        reported(name, of.model_copy(update={"effect": effect}), finding=finding)
        for (name, of), (effect, finding, named) in zip(places, guesses, strict=True)
        if named
    ]
    answer = Answer(method="anyone", models=NAMES, factors=["weather"], cells=cells)
    result = score(KEY, answer)
    claims = sum(cell.finding for cell in cells)
    assert result.found + result.invented + result.undecided == claims
    assert [dose.found + dose.missed + dose.untested for dose in result.doses] == [1, 1, 1]
    assert 0 <= result.false_discovery_rate <= 1
    assert result.false_discoveries_over_null_cells.count <= result.invented
    shuffled = sorted(cells, key=lambda _: random.random())  # type: ignore[attr-defined]
    again = score(KEY, answer.model_copy(update={"cells": shuffled}))
    assert again.model_dump(exclude=set(ORDERED)) == result.model_dump(exclude=set(ORDERED))


def test_score_and_key_are_printed_for_people() -> None:
    text = format_answer(score(KEY, perfect()))
    assert "recall 100.0% (1 of 1;" in text
    assert "rank correlation 1.00 (n = 4)" in text
    assert "bus to night called truck: -62.0 [-65.0, -59.0]" in format_key(KEY)
