"""Models that are asked a question, of known behaviour: each is named for what it is.

Each is asked which of three classes an image shows, 60 images a class by day, each edited to night.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pytest

from gateway.analysis.effects import differences
from gateway.analysis.findings import assess
from gateway.database.columns import StoredChange
from gateway.kinds.blind import NO_ANSWER, BlindAnswers, with_baseline
from gateway.kinds.classification import CLASSIFICATION, ClassAnswer, ClassifiedOriginals
from gateway.kinds.rows import CounterfactualRow, PredictionRow, SourceNumbers
from gateway.results.pairing import triples
from gateway.results.rows import ScoreColumns
from gateway.results.stream import SourceRow, SourceRows
from shared.schemas.base import JsonObject
from shared.schemas.metrics import OriginalsCheck
from shared.seeds import derive_seed

CLASSES = ["bus", "car", "truck"]
IMAGES = 60  # of each class
NIGHT: StoredChange = {
    "factor": "weather", "from_phrase": "day", "to_phrase": "night", "from_value": "", "to_value": "night",
}  # fmt: skip


class Measured(NamedTuple):
    """The check of a model's originals, and the classes of its weaknesses."""

    check: OriginalsCheck
    weaknesses: list[str]


def said(model: str, label: str, options: list[str], random: np.random.Generator, arm: str) -> str:
    """The class that a model names, or that it gives no answer. `arm`: original, null, night or blind."""
    guess = options[random.integers(3)]
    if model == "refuses a tenth" and random.random() < 0.1:
        return NO_ANSWER
    if model == "first":
        return options[0]
    if model == "blind" or (model == "half-blind" and random.random() < 0.5):
        return options[1]
    if arm == "blind":  # a half-blind model has the same answer without the picture
        return options[1] if model == "half-blind" else NO_ANSWER if model == "refuses blind" else guess
    is_lost = model == "guesses at night" and arm == "night" and label == "bus"
    return guess if is_lost else label


def row(position: int, arm: str) -> CounterfactualRow:
    changes = [NIGHT] if arm == "night" else []
    kind, ordinal = ("edit", 1) if changes else ("null", 0)
    return CounterfactualRow(
        position, f"{position} {arm}", str(position), "dillema", ordinal, kind, 0 if changes else None, changes,
        rendered=True, accepted=True, check="", evaluations=None,
    )  # fmt: skip


@lru_cache
def measured(model: str) -> Measured:
    random = np.random.default_rng(derive_seed("asked", model))
    judge, columns = ClassifiedOriginals(CLASSES, "labelled", seed=1), ScoreColumns(CLASSIFICATION.detail(CLASSES))
    for position in range(IMAGES * len(CLASSES)):
        label, options = CLASSES[position % 3], [str(name) for name in random.permutation(CLASSES)]
        rows = {"original": None, "null": row(position, "null"), "night": row(position, "night")}
        predictions = []
        for arm, edit in rows.items():
            named = said(model, label, options, random, arm)
            answer = ClassAnswer({}, "refused") if named == NO_ANSWER else ClassAnswer(
                {name: float(name == named) for name in CLASSES}, None, options.index(named)
            )  # fmt: skip
            scored = CLASSIFICATION.judge(answer, label, CLASSES)
            if edit is None:
                blind: JsonObject = {"without": said(model, label, options, random, "blind"), "options": 3}
                scored = scored._replace(detail={**scored.detail, "blind": blind})
            of_image = (position, str(position), edit and edit.id, "vlm", scored.predicted, scored.probability)
            predictions.append(PredictionRow(*of_image, None, scored.scores, scored.detail))
        judge.add(position, predictions[0])
        edits = [edit for edit in rows.values() if edit]
        source = SourceRows(SourceRow(position, str(position), "done", label), edits, predictions)
        columns.add(SourceNumbers(position, position), source, list(triples(edits)), source.predictions_of("vlm"))
    scores, check = columns.rows().scores, judge.check()
    assert check is not None
    effects = assess({cell: differences(scores, rows) for cell, rows in scores.cells.items()}, seed=1)
    return Measured(check, [effect.cell.label for effect in effects if effect.standing == "weakness"])


@pytest.mark.parametrize(
    ("model", "standing", "words"),
    [
        ("honest", "sound", ""),
        ("guesses at night", "sound", ""),
        ("refuses blind", "sound", "Without the pictures it answered none of the questions"),
        ("refuses a tenth", "sound", "did not answer"),
        ("half-blind", "sound", "it looks at a part of them only"),
        ("blind", "unsound", "whatever stood there"),
        ("first", "unsound", "whatever stood there"),
    ],
)
def test_each_model_is_named_for_what_it_is(model: str, standing: str, words: str) -> None:
    check, weaknesses = measured(model)
    assert check.standing == standing, check.sentence
    assert words in check.sentence
    assert ("part of them only" in check.sentence) == (model == "half-blind")
    assert check.blind is not None
    assert check.blind.looks == (standing == "sound")
    assert weaknesses == (["bus"] if model == "guesses at night" else [])


def test_what_could_be_had_blind_is_counted_apart() -> None:
    blind = measured("half-blind").check.blind
    assert blind is not None
    assert blind.chance == pytest.approx(1 / 3)
    assert blind.right.low < 1 / 3 < blind.right.high
    assert blind.of_right.low < 1 / 2 < blind.of_right.high  # a third is right by chance, and a third is not seen
    assert blind.same.low < 2 / 3 < blind.same.high


def test_a_model_that_is_right_without_the_pictures_gets_no_verdict() -> None:
    """It is right on four fifths: the labels are told by the question, and the originals would call it sound."""
    answers = BlindAnswers()
    for number in range(60):
        label, said = CLASSES[number % 3], CLASSES[(number + (number % 5 == 0)) % 3]
        answers.add(number, label, said, said, 3)
    baseline = answers.baseline(seed=1)
    assert baseline is not None
    assert (baseline.right.count, baseline.of_right.value, baseline.looks) == (48, 1.0, False)
    check = with_baseline(OriginalsCheck(right=baseline.right, standing="sound"), baseline, labelled=True)
    assert check.standing == "unsound"
    assert "80% (48 of 60) of the originals with their pictures and on 80% (48 of 60) without" in check.sentence


def test_few_originals_are_not_judged_by_their_blind_answers() -> None:
    answers = BlindAnswers()
    for number in range(11):
        answers.add(number, "bus", "bus", "bus", 2)
    baseline = answers.baseline(seed=1)
    assert baseline is not None
    assert with_baseline(OriginalsCheck(standing="open"), baseline, labelled=True).standing == "open"


def test_frames_of_one_sequence_are_no_independent_answers() -> None:
    """Four sequences whose 15 frames each are right with the picture alone are four, not 60."""
    answers = BlindAnswers()
    for number in range(60):
        answers.add(number // 15, "bus", "bus", "car", 2)
    baseline = answers.baseline(seed=1)
    assert baseline is not None
    assert not baseline.looks


def test_without_ground_truth_a_model_that_says_the_same_blind_gets_no_verdict() -> None:
    judge = ClassifiedOriginals(CLASSES, "metamorphic", seed=1)
    for number in range(24):
        said = CLASSES[number % 3]
        detail: JsonObject = {"rank": 1, "truth_probability": 1.0, "top": [], "blind": {"without": said, "options": 3}}
        judge.add(number, PredictionRow(number, "", None, "vlm", said, 1.0, None, {said: 1.0}, detail))
    check = judge.check()
    assert check is not None
    assert (check.standing, check.right) == ("unsound", None)
    assert "the same without seeing them" in check.sentence
